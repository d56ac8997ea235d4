"""What happened to sandboxes, in order. Events outlive the sandbox they tell of."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.store.database import Database, key

# Older events than the last so many are forgotten: the log tells what happened lately, it is no archive.
KEPT = 100_000


@dataclass(frozen=True)
class EventRecord:
    """One event. `seq` grows from event to event, so a reader goes on after the last one it has seen."""

    seq: int
    at: float
    workspace: str
    sandbox_id: str
    type: str
    payload: Mapping[str, Any] = field(default_factory=dict)


class Events:
    """The event log in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, workspace: str, sandbox_id: str, kind: str, payload: Mapping[str, Any] | None = None) -> EventRecord:
        at, content = time.time(), dict(payload or {})
        values = (at, workspace, sandbox_id, kind, json.dumps(content))
        with self._database.write() as db:
            insert = "INSERT INTO events (at, workspace, sandbox_id, type, payload) VALUES (?, ?, ?, ?, ?) RETURNING seq"
            seq: int = db.execute(insert, values).fetchone()[0]
            db.execute("DELETE FROM events WHERE seq <= ?", (seq - KEPT,))
        return EventRecord(seq, at, workspace, sandbox_id, kind, content)

    def of_sandbox(self, sandbox_id: str, *, after: int = 0, last: int = 1000) -> list[EventRecord]:
        """The `last` events of one sandbox that came after number `after`, oldest first."""
        return self._tail("sandbox_id", sandbox_id, after, last)

    def of_workspace(self, workspace: str, *, after: int = 0, last: int = 1000) -> list[EventRecord]:
        return self._tail("workspace", workspace, after, last)

    def has(self, sandbox_id: str, kind: str) -> bool:
        return bool(self._database.select("SELECT 1 FROM events WHERE sandbox_id = ? AND type = ? LIMIT 1", key(sandbox_id), kind))

    def _tail(self, column: str, value: str, after: int, last: int) -> list[EventRecord]:
        query = f"SELECT * FROM events WHERE {column} = ? AND seq > ? ORDER BY seq DESC LIMIT ?"
        return [self._parse(row) for row in reversed(self._database.select(query, key(value), after, last))]

    def _parse(self, row: sqlite3.Row) -> EventRecord:
        try:
            payload = json.loads(row["payload"])
        except ValueError as error:
            raise self._database.damaged(error) from error
        return EventRecord(row["seq"], row["at"], row["workspace"], row["sandbox_id"], row["type"], payload)
