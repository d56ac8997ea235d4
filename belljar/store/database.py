"""The one SQLite file under a home: opened, brought up to date, and read and written in a way that several processes can share.

Every write is one immediate transaction. SQLite's errors become Belljar's here and nowhere else.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from belljar.errors import HostDiskShort, HostError, HostSetup
from belljar.store.schema import MIGRATIONS

BUSY_TIMEOUT_S = 15.0


class Database:
    """The file at `path`, which is created when it is not there. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._translated():
            # Environments hold secrets: the file is the owner's alone, and SQLite gives its side files the same mode.
            # Only ever created here: closing a descriptor of a file that is there drops the locks that other connections of
            # this process hold on it, and another process then removes the log that they still write to.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self.connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self.connection.row_factory = sqlite3.Row
        try:
            with self._translated():
                self.connection.execute("PRAGMA journal_mode = WAL")
            self._migrate()
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction. `durable` waits until it would survive a power cut."""
        with self._lock, self._translated():
            self.connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # some failures, a full disk among them, have rolled back already
                    self.connection.execute("ROLLBACK")
                raise

    def select(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, self._translated():
            return self.connection.execute(query, values).fetchall()

    def damaged(self, error: Exception) -> HostSetup:
        return HostSetup(
            f"{self._path} cannot be read as Belljar's records ({error}); restore it from a backup, or move it away: "
            "Belljar then starts with empty records, and `belljar gc` removes what they no longer name"
        )

    def damaged_row(self, table: str, name: str, error: Exception) -> HostSetup:
        return HostSetup(
            f"the record of {name} in {self._path} is damaged ({error}); repair it in the table {table}, or delete it there: "
            "what it stands for is then removed, and all others are as they were"
        )

    def _migrate(self) -> None:
        with self.write(durable=True) as db:
            # Asked inside the transaction: another process may have been migrating the same new file a moment ago.
            version: int = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise HostSetup(f"{self._path} was written by a newer Belljar (schema {version}); upgrade Belljar to use it")
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    db.execute(statement)
            if version < len(MIGRATIONS):  # else nothing is written: the disk may be full
                db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
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
            if primary == sqlite3.SQLITE_IOERR:
                # No word of damage: a full disk looks like this too, and who moved the file away then would lose everything.
                raise HostError(f"cannot read or write {self._path}: {error}; its disk is full, or failing") from error
            raise self.damaged(error) from error


def key(text: str) -> str:
    """Ids come from users: one that is no Unicode text (half a surrogate pair) is simply not there."""
    return text.encode("utf-8", "backslashreplace").decode()
