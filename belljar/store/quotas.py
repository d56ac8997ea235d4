"""What workspaces may have, where it differs from the settings."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from belljar.store.database import Database


@dataclass(frozen=True)
class QuotaRecord:
    """The limits of one workspace. None is what the settings say; 0 is no limit."""

    sandboxes: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    rate_per_s: float | None = None
    rate_burst: int | None = None


class Quotas:
    """The limits in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, QuotaRecord]:
        rows = self._database.select("SELECT workspace, sandboxes, memory_mib, disk_mib, rate_per_s, rate_burst FROM quotas")
        return {row[0]: QuotaRecord(*tuple(row)[1:]) for row in rows}

    def put(self, workspace: str, record: QuotaRecord) -> None:
        with self._database.write(durable=True) as db:
            db.execute("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?, ?, ?, ?)", (workspace, *astuple(record)))
