"""Access tokens as they are remembered: by their hash, so that reading the file gives nobody access."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from belljar.errors import AlreadyExists
from belljar.store.database import Database, key


@dataclass(frozen=True)
class TokenRecord:
    """A token without the token. `prefix` is its public beginning, by which it is listed and revoked."""

    hash: str
    prefix: str
    label: str
    workspace: str
    admin: bool
    created_at: float
    expires_at: float | None = None


class Tokens:
    """The tokens in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, record: TokenRecord) -> TokenRecord:
        names = ("hash", "prefix", "label", "workspace", "admin", "created_at", "expires_at")
        values = [getattr(record, name) for name in names]
        with self._database.write(durable=True) as db:
            try:
                db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            except sqlite3.IntegrityError as error:
                raise AlreadyExists(f"a token that begins with {record.prefix} is already there") from error
        return record

    def find(self, digest: str) -> TokenRecord | None:
        rows = self._database.select("SELECT * FROM tokens WHERE hash = ?", key(digest))
        return _parse(rows[0]) if rows else None

    def good(self, prefixes: Collection[str], now: float) -> set[str]:
        """Those of the prefixes that belong to a token which is good at that time."""
        places = ", ".join("?" * len(prefixes))
        query = f"SELECT prefix FROM tokens WHERE prefix IN ({places}) AND (expires_at IS NULL OR expires_at > ?)"
        return {row[0] for row in self._database.select(query, *prefixes, now)}

    def list(self, workspace: str | None = None) -> list[TokenRecord]:
        """Oldest first; of one workspace, or all."""
        rows = self._database.select(
            "SELECT * FROM tokens WHERE ? IS NULL OR workspace = ? ORDER BY created_at, prefix", workspace, workspace
        )
        return [_parse(row) for row in rows]

    def delete(self, prefix: str, workspace: str | None = None) -> bool:
        query = "DELETE FROM tokens WHERE prefix = ? AND (? IS NULL OR workspace = ?)"
        with self._database.write(durable=True) as db:
            return db.execute(query, (key(prefix), workspace, workspace)).rowcount > 0


def _parse(row: sqlite3.Row) -> TokenRecord:
    values = {name: row[name] for name in row.keys()}  # noqa: SIM118 (Row iterates values)
    return TokenRecord(**{**values, "admin": bool(row["admin"])})
