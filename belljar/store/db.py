"""What must survive a restart: one row per sandbox, one per snapshot.

Callers see dataclasses and Belljar's own errors, never SQLite, so that a fleet of machines can keep the same records elsewhere.
Calls are short and block; asyncio code reaches them through `asyncio.to_thread`. Several processes share one file: every write
is one immediate transaction, and nothing read is relied upon across two of them.

Durability: a VM does not outlive a power cut, so a lost row of a running sandbox is no loss and its insert does not wait for
the disk. What does outlive it (snapshots, a hibernated sandbox) is written with `durable`, which does.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from belljar.errors import AlreadyExists, HostError, SandboxNotFound, SnapshotNotFound
from belljar.store.database import Database, key
from belljar.store.pages import Page, Query


@dataclass(frozen=True)
class SandboxRecord:
    """A sandbox as it is remembered. `parent` is the sandbox it was forked from; `reason` says why it is in a bad state.

    `egress` is its policy, empty for the server's own; `egress_bytes` have been moved so far. Secrets and the authority's key are
    for the host alone, and never shown.
    """

    id: str
    template: str
    template_digest: str
    state: str
    created_at: float
    vcpus: int
    memory_mib: int
    disk_mib: int
    origin_snapshot: str | None = None
    parent: str | None = None
    expires_at: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None
    reason: str | None = None
    workspace: str = "default"
    persistent: bool = False
    ttl_s: float | None = None
    egress: Mapping[str, Any] = field(default_factory=dict)
    egress_secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    egress_authority: str = field(default="", repr=False)
    egress_bytes: int = 0


@dataclass(frozen=True)
class SnapshotRecord:
    """A snapshot as it is remembered. It outlives the sandbox it was taken of, so `sandbox_id` may name one that is gone."""

    id: str
    sandbox_id: str
    template: str
    template_digest: str
    created_at: float
    size_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    workspace: str = "default"
    egress: Mapping[str, Any] = field(default_factory=dict)
    egress_secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Size:
    """What a sandbox takes of its workspace's quota."""

    id: str
    state: str
    memory_mib: int
    disk_mib: int


Record = TypeVar("Record", SandboxRecord, SnapshotRecord)

JSON_FIELDS = frozenset({"metadata", "env", "egress", "egress_secrets"})
FLAG_FIELDS = frozenset({"persistent"})
SANDBOX_FIELDS = frozenset(f.name for f in fields(SandboxRecord))


class Records:
    """The records of one host, in the file at `path`, which is created when it is not there."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)

    def close(self) -> None:
        self.database.close()

    def probe(self) -> None:
        """Raises if nothing can be written, or a record cannot be read."""
        self.list_sandboxes()
        with self.database.write() as db:
            db.execute(f"PRAGMA user_version = {db.execute('PRAGMA user_version').fetchone()[0]}")

    # -- sandboxes --

    def insert_sandbox(self, record: SandboxRecord, *, uids: range | None = None) -> SandboxRecord:
        """Remember a new sandbox. With `uids` it is also given the lowest of them that no other sandbox has, in one step."""
        with self.database.write() as db:
            if uids is not None:
                record = replace(record, uid=self._free_uid(db, uids))
            self._insert(db, "sandboxes", record)
        return record

    def find_sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        rows = self.database.select("SELECT * FROM sandboxes WHERE id = ?", key(sandbox_id))
        return self._parse(SandboxRecord, rows[0]) if rows else None

    def get_sandbox(self, sandbox_id: str) -> SandboxRecord:
        found = self.find_sandbox(sandbox_id)
        if found is None:
            raise _no_sandbox(sandbox_id)
        return found

    def list_sandboxes(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        states: Collection[str] | None = None,
        workspace: str | None = None,
        page: Page | None = None,
    ) -> list[SandboxRecord]:
        """Oldest first; only those that carry every pair of `metadata`, are in one of `states`, and belong to `workspace`."""
        query = Query("sandboxes", page).where_labels(metadata)
        if workspace is not None:
            query.where("workspace = ?", workspace)
        if states is not None:
            query.where(f"state IN ({', '.join('?' * len(states))})", *states)
        return [self._parse(SandboxRecord, row) for row in self.database.select(*query.render())]

    def expired(self, now: float) -> list[SandboxRecord]:
        """Sandboxes whose time to live has run out, longest overdue first."""
        rows = self.database.select("SELECT * FROM sandboxes WHERE expires_at <= ? ORDER BY expires_at, id", now)
        return [self._parse(SandboxRecord, row) for row in rows]

    def update_sandbox(self, sandbox_id: str, *, durable: bool = False, **changes: Any) -> SandboxRecord:
        """Change some fields and return the record as it is now. `durable` waits until the change would survive a power cut."""
        unknown = changes.keys() - (SANDBOX_FIELDS - {"id"})
        if unknown or not changes:
            raise TypeError(f"update_sandbox: nothing to change, or no such fields: {sorted(unknown)}")
        assignments = ", ".join(f"{name} = ?" for name in changes)
        with self.database.write(durable=durable) as db:
            values = [*(_to_column(name, value) for name, value in changes.items()), key(sandbox_id)]
            row = db.execute(f"UPDATE sandboxes SET {assignments} WHERE id = ? RETURNING *", values).fetchone()
            if row is None:
                raise _no_sandbox(sandbox_id)
        return self._parse(SandboxRecord, row)

    def delete_sandbox(self, sandbox_id: str) -> bool:
        """Forget a sandbox; False when it was not known, so that whoever cleans up may come second."""
        with self.database.write() as db:
            return db.execute("DELETE FROM sandboxes WHERE id = ?", (key(sandbox_id),)).rowcount > 0

    # -- snapshots --

    def insert_snapshot(self, record: SnapshotRecord) -> SnapshotRecord:
        """Remember a snapshot. It belongs to the workspace of its sandbox, whoever took it, and has its sandbox's egress."""
        with self.database.write(durable=True) as db:
            columns = "workspace, egress, egress_secrets"
            owner = db.execute(f"SELECT {columns} FROM sandboxes WHERE id = ?", (record.sandbox_id,)).fetchone()
            if owner is not None:
                record = replace(record, **{name: _from_column(name, owner[name]) for name in owner.keys()})  # noqa: SIM118
            self._insert(db, "snapshots", record)
        return record

    def find_snapshot(self, snapshot_id: str) -> SnapshotRecord | None:
        rows = self.database.select("SELECT * FROM snapshots WHERE id = ?", key(snapshot_id))
        return self._parse(SnapshotRecord, rows[0]) if rows else None

    def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        found = self.find_snapshot(snapshot_id)
        if found is None:
            raise SnapshotNotFound(f"no snapshot {snapshot_id!r}; `belljar snapshot list` shows those there are")
        return found

    def list_snapshots(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        workspace: str | None = None,
        sandbox_id: str | None = None,
        page: Page | None = None,
    ) -> list[SnapshotRecord]:
        """Oldest first, unless the page says otherwise."""
        query = Query("snapshots", page).where_labels(metadata)
        if workspace is not None:
            query.where("workspace = ?", workspace)
        if sandbox_id is not None:
            query.where("sandbox_id = ?", key(sandbox_id))
        return [self._parse(SnapshotRecord, row) for row in self.database.select(*query.render())]

    def delete_snapshot(self, snapshot_id: str) -> bool:
        with self.database.write(durable=True) as db:
            return db.execute("DELETE FROM snapshots WHERE id = ?", (key(snapshot_id),)).rowcount > 0

    def sizes(self, workspace: str) -> tuple[list[Size], list[int]]:
        """Of all sandboxes of a workspace, in whatever state, and the bytes of each of its snapshots."""
        sandboxes = self.database.select("SELECT id, state, memory_mib, disk_mib FROM sandboxes WHERE workspace = ?", workspace)
        snapshots = self.database.select("SELECT size_bytes FROM snapshots WHERE workspace = ?", workspace)
        return [Size(*row) for row in sandboxes], [row[0] for row in snapshots]

    # -- how --

    def _insert(self, db: sqlite3.Connection, table: str, record: SandboxRecord | SnapshotRecord) -> None:
        names = [f.name for f in fields(record)]
        values = [_to_column(name, getattr(record, name)) for name in names]
        try:
            db.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(f"{table}: {record.id} or its uid is already there ({error})") from error

    def _free_uid(self, db: sqlite3.Connection, uids: range) -> int:
        taken = {row[0] for row in db.execute("SELECT uid FROM sandboxes WHERE uid IS NOT NULL")}
        for uid in uids:
            if uid not in taken:
                return uid
        raise HostError(f"all {len(uids)} user ids for sandboxes are in use; kill some sandboxes (`belljar ps`)")

    def _parse(self, kind: type[Record], row: sqlite3.Row) -> Record:
        try:
            return kind(**{name: _from_column(name, row[name]) for name in row.keys()})  # noqa: SIM118 (Row iterates values)
        except ValueError as error:
            table = "sandboxes" if kind is SandboxRecord else "snapshots"
            raise self.database.damaged_row(table, row["id"], error) from error


def _to_column(name: str, value: Any) -> Any:
    if name in FLAG_FIELDS:
        return int(value)
    return json.dumps(dict(value)) if name in JSON_FIELDS else value


def _from_column(name: str, value: Any) -> Any:
    if name in FLAG_FIELDS:
        return bool(value)
    if name not in JSON_FIELDS:
        return value
    parsed = json.loads(value)
    if not isinstance(parsed, dict):
        raise ValueError(f"{name} is not an object")
    return parsed


def _no_sandbox(sandbox_id: str) -> SandboxNotFound:
    return SandboxNotFound(f"no sandbox {sandbox_id!r}; `belljar ps` shows those there are")
