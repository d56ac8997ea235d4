"""What must survive a restart: one row per sandbox, one per snapshot.

Callers see dataclasses and Belljar's own errors, never SQLite, so that a fleet of machines can keep the same records elsewhere.
Calls are short and block; asyncio code reaches them through `asyncio.to_thread`. Several processes share one file: every write
is one immediate transaction, and nothing read is relied upon across two of them.

Durability: a VM does not outlive a power cut, so a lost row of a running sandbox is no loss and its insert does not wait for
the disk. What does outlive it (snapshots, a hibernated sandbox) is written with `durable`, which does.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from belljar.errors import AlreadyExists, HostDiskShort, HostError, HostSetup, SandboxNotFound, SnapshotNotFound

BUSY_TIMEOUT_S = 15.0

# Each entry takes the schema one version further; user_version counts how many were applied. Never edit one that was released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sandboxes (
            id TEXT PRIMARY KEY, template TEXT NOT NULL, template_digest TEXT NOT NULL, origin_snapshot TEXT, parent TEXT,
            state TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, metadata TEXT NOT NULL, env TEXT NOT NULL,
            vcpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL, disk_mib INTEGER NOT NULL, uid INTEGER UNIQUE, reason TEXT
        ) STRICT""",
        "CREATE INDEX sandboxes_expires_at ON sandboxes (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE snapshots (
            id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, template TEXT NOT NULL, template_digest TEXT NOT NULL,
            created_at REAL NOT NULL, size_bytes INTEGER NOT NULL, metadata TEXT NOT NULL
        ) STRICT""",
    ),
)


@dataclass(frozen=True)
class SandboxRecord:
    """A sandbox as it is remembered. `parent` is the sandbox it was forked from; `reason` says why it is in a bad state."""

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


Record = TypeVar("Record", SandboxRecord, SnapshotRecord)

JSON_FIELDS = frozenset({"metadata", "env"})
SANDBOX_FIELDS = frozenset(f.name for f in fields(SandboxRecord))


class Records:
    """The records of one host, in the file at `path`, which is created when it is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._translated():
            # Environments hold secrets: the file is the owner's alone, and SQLite gives its side files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        try:
            with self._translated():
                self._db.execute("PRAGMA journal_mode = WAL")
            self._migrate()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # -- sandboxes --

    def insert_sandbox(self, record: SandboxRecord, *, uids: range | None = None) -> SandboxRecord:
        """Remember a new sandbox. With `uids` it is also given the lowest of them that no other sandbox has, in one step."""
        with self._write() as db:
            if uids is not None:
                record = replace(record, uid=self._free_uid(db, uids))
            self._insert(db, "sandboxes", record)
        return record

    def find_sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        rows = self._select("SELECT * FROM sandboxes WHERE id = ?", _key(sandbox_id))
        return self._parse(SandboxRecord, rows[0]) if rows else None

    def get_sandbox(self, sandbox_id: str) -> SandboxRecord:
        found = self.find_sandbox(sandbox_id)
        if found is None:
            raise _no_sandbox(sandbox_id)
        return found

    def list_sandboxes(
        self, *, metadata: Mapping[str, str] | None = None, states: Collection[str] | None = None
    ) -> list[SandboxRecord]:
        """Oldest first; only those that carry every pair of `metadata` and are in one of `states`."""
        rows = self._select("SELECT * FROM sandboxes ORDER BY created_at, id")
        records = (self._parse(SandboxRecord, row) for row in rows)
        return [r for r in records if _carries(r.metadata, metadata) and (states is None or r.state in states)]

    def expired(self, now: float) -> list[SandboxRecord]:
        """Sandboxes whose time to live has run out, longest overdue first."""
        rows = self._select("SELECT * FROM sandboxes WHERE expires_at <= ? ORDER BY expires_at, id", now)
        return [self._parse(SandboxRecord, row) for row in rows]

    def update_sandbox(self, sandbox_id: str, *, durable: bool = False, **changes: Any) -> SandboxRecord:
        """Change some fields and return the record as it is now. `durable` waits until the change would survive a power cut."""
        unknown = changes.keys() - (SANDBOX_FIELDS - {"id"})
        if unknown or not changes:
            raise TypeError(f"update_sandbox: nothing to change, or no such fields: {sorted(unknown)}")
        assignments = ", ".join(f"{name} = ?" for name in changes)
        with self._write(durable=durable) as db:
            values = [*(_to_column(name, value) for name, value in changes.items()), _key(sandbox_id)]
            row = db.execute(f"UPDATE sandboxes SET {assignments} WHERE id = ? RETURNING *", values).fetchone()
            if row is None:
                raise _no_sandbox(sandbox_id)
        return self._parse(SandboxRecord, row)

    def delete_sandbox(self, sandbox_id: str) -> bool:
        """Forget a sandbox; False when it was not known, so that whoever cleans up may come second."""
        with self._write() as db:
            return db.execute("DELETE FROM sandboxes WHERE id = ?", (_key(sandbox_id),)).rowcount > 0

    # -- snapshots --

    def insert_snapshot(self, record: SnapshotRecord) -> SnapshotRecord:
        with self._write(durable=True) as db:
            self._insert(db, "snapshots", record)
        return record

    def find_snapshot(self, snapshot_id: str) -> SnapshotRecord | None:
        rows = self._select("SELECT * FROM snapshots WHERE id = ?", _key(snapshot_id))
        return self._parse(SnapshotRecord, rows[0]) if rows else None

    def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        found = self.find_snapshot(snapshot_id)
        if found is None:
            raise SnapshotNotFound(f"no snapshot {snapshot_id!r}; `belljar snapshot list` shows those there are")
        return found

    def list_snapshots(self, *, metadata: Mapping[str, str] | None = None) -> list[SnapshotRecord]:
        rows = self._select("SELECT * FROM snapshots ORDER BY created_at, id")
        records = (self._parse(SnapshotRecord, row) for row in rows)
        return [r for r in records if _carries(r.metadata, metadata)]

    def delete_snapshot(self, snapshot_id: str) -> bool:
        with self._write(durable=True) as db:
            return db.execute("DELETE FROM snapshots WHERE id = ?", (_key(snapshot_id),)).rowcount > 0

    # -- how --

    def _migrate(self) -> None:
        with self._write(durable=True) as db:
            # Asked inside the transaction: another process may have been migrating the same new file a moment ago.
            version: int = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise HostSetup(f"{self._path} was written by a newer Belljar (schema {version}); upgrade Belljar to use it")
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def _write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # some failures, a full disk among them, have rolled back already
                    self._db.execute("ROLLBACK")
                raise

    def _select(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, self._translated():
            return self._db.execute(query, values).fetchall()

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
            raise self._damaged(error) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where SQLite's errors become ours."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except OSError as error:
            raise HostSetup(f"cannot use {self._path}: {error.strerror}; check that its folder exists and is yours") from error
        except sqlite3.Error as error:
            primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if primary == sqlite3.SQLITE_FULL:
                raise HostDiskShort(f"no space left to write {self._path}; free some disk and try again") from error
            if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise HostError(f"{self._path} was locked by another process for {BUSY_TIMEOUT_S:.0f} s; try again") from error
            if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
                raise HostSetup(f"cannot use {self._path}: {error}; check that the file and its folder are yours") from error
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> HostSetup:
        return HostSetup(
            f"{self._path} cannot be read as Belljar's records ({error}); restore it from a backup, or move it away: "
            "Belljar then starts with empty records, and `belljar gc` removes what they no longer name"
        )


def _key(text: str) -> str:
    """Ids come from users: one that is no Unicode text (half a surrogate pair) is simply not there."""
    return text.encode("utf-8", "backslashreplace").decode()


def _to_column(name: str, value: Any) -> Any:
    return json.dumps(dict(value)) if name in JSON_FIELDS else value


def _from_column(name: str, value: Any) -> Any:
    if name not in JSON_FIELDS:
        return value
    parsed = json.loads(value)
    if not isinstance(parsed, dict):
        raise ValueError(f"{name} is not an object")
    return parsed


def _carries(metadata: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    return all(metadata.get(key) == value for key, value in (wanted or {}).items())


def _no_sandbox(sandbox_id: str) -> SandboxNotFound:
    return SandboxNotFound(f"no sandbox {sandbox_id!r}; `belljar ps` shows those there are")
