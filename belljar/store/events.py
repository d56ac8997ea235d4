"""What happened to sandboxes, in order. Events outlive the sandbox they tell of."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Mapping
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
        return self._select("sandbox_id", sandbox_id, after, "DESC", last)[::-1]

    def of_workspace(self, workspace: str, *, after: int = 0, last: int = 1000) -> list[EventRecord]:
        return self._select("workspace", workspace, after, "DESC", last)[::-1]

    def next_of_sandbox(self, sandbox_id: str, *, after: int, most: int = 1000) -> list[EventRecord]:
        """The first events after number `after`, oldest first: whoever goes on after the last of them misses none."""
        return self._select("sandbox_id", sandbox_id, after, "ASC", most)

    def next_of_workspace(self, workspace: str, *, after: int, most: int = 1000) -> list[EventRecord]:
        return self._select("workspace", workspace, after, "ASC", most)

    def newest(self) -> int:
        """The number of the newest event of all."""
        found: int | None = self._database.select("SELECT max(seq) FROM events")[0][0]
        return found or 0

    def unended(self) -> list[tuple[str, str]]:
        """Workspace and id of sandboxes that were created, are not there, and are not told to have been deleted."""
        return [
            (row[0], row[1])
            for row in self._database.select(
                "SELECT DISTINCT workspace, sandbox_id FROM events AS made WHERE type = 'sandbox.created' "
                "AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = made.sandbox_id) "
                "AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.sandbox_id = made.sandbox_id AND e.type = 'sandbox.deleted')"
            )
        ]

    def last_of(self, kinds: Collection[str]) -> dict[str, str]:
        """The newest event of these kinds, for each sandbox that is there."""
        places = ", ".join("?" * len(kinds))
        there = f"sandbox_id IN (SELECT id FROM sandboxes) AND type IN ({places})"
        query = f"SELECT sandbox_id, type, max(seq) FROM events WHERE {there} GROUP BY sandbox_id"
        return {row[0]: row[1] for row in self._database.select(query, *kinds)}

    def has(self, sandbox_id: str, kind: str) -> bool:
        return bool(self._database.select("SELECT 1 FROM events WHERE sandbox_id = ? AND type = ? LIMIT 1", key(sandbox_id), kind))

    def _select(self, column: str, value: str, after: int, order: str, most: int) -> list[EventRecord]:
        query = f"SELECT * FROM events WHERE {column} = ? AND seq > ? ORDER BY seq {order} LIMIT ?"
        return [self._parse(row) for row in self._database.select(query, key(value), after, most)]

    def _parse(self, row: sqlite3.Row) -> EventRecord:
        try:
            payload = json.loads(row["payload"])
        except ValueError as error:
            raise self._database.damaged(error) from error
        return EventRecord(row["seq"], row["at"], row["workspace"], row["sandbox_id"], row["type"], payload)
