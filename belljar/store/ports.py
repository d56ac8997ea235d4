"""Ports of sandboxes that somebody has named: whether anyone may look, and since when links to them count."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from belljar.store.database import Database, key


@dataclass(frozen=True)
class PortRecord:
    """One port of one sandbox. Links that were signed before `links_since` are no longer good."""

    sandbox_id: str
    port: int
    shared: bool = False
    public: bool = False
    label: str = ""
    links_since: float = 0.0


class SharedPorts:
    """The ports in one database. A sandbox that ends takes its own along."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, sandbox_id: str, port: int) -> PortRecord:
        """What is known of a port; of one that nobody has named, that it is private."""
        rows = self._database.select("SELECT * FROM ports WHERE sandbox_id = ? AND port = ?", key(sandbox_id), port)
        return _parse(rows[0]) if rows else PortRecord(sandbox_id, port)

    def list(self, sandbox_id: str) -> list[PortRecord]:
        """Those that are shared, by number."""
        rows = self._database.select("SELECT * FROM ports WHERE sandbox_id = ? AND shared ORDER BY port", key(sandbox_id))
        return [_parse(row) for row in rows]

    def share(self, sandbox_id: str, port: int, *, public: bool, label: str) -> PortRecord:
        """Links that were made before stay as they are."""
        with self._database.write(durable=True) as db:
            row = db.execute(
                """INSERT INTO ports VALUES (?, ?, 1, ?, ?, 0) ON CONFLICT (sandbox_id, port)
                DO UPDATE SET shared = 1, public = excluded.public, label = excluded.label RETURNING *""",
                (key(sandbox_id), port, int(public), label),
            ).fetchone()
        return _parse(row)

    def withdraw(self, sandbox_id: str, port: int) -> None:
        """No longer shared or public, and the links that there are end. Also of a port that was never shared."""
        with self._database.write(durable=True) as db:
            db.execute(
                """INSERT INTO ports VALUES (?, ?, 0, 0, '', ?) ON CONFLICT (sandbox_id, port)
                DO UPDATE SET shared = 0, public = 0, label = '', links_since = excluded.links_since""",
                (key(sandbox_id), port, time.time()),
            )


def _parse(row: sqlite3.Row) -> PortRecord:
    return PortRecord(
        row["sandbox_id"], row["port"], bool(row["shared"]), bool(row["public"]), row["label"], row["links_since"]
    )
