"""Atomic work on directories: locks, work places that clean up after a crash, and publishing by rename.

Work happens in a directory under tmp/ whose lock (flock on the directory itself) is held for as long as anybody works in it,
child processes included, because they inherit the descriptor. So a work place without a holder was left by a process that
died, and whoever comes next may remove it. What is published was flushed to disk first, and appears under its name at once or
not at all.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import BuildFailed

TRY_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Workplace:
    """A private directory under tmp/. `fd` is its lock; child processes get it too (pass_fds), so that it outlives us."""

    path: Path
    fd: int


def remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def exclusive(lock: Path, deadline_s: float, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on the file `lock`; `waiting` is called once if somebody else has it."""
    with _opened(lock) as fd:
        for _ in _tries(fd, lock.name, deadline_s, waiting):
            time.sleep(TRY_EVERY_S)
        yield


@asynccontextmanager
async def exclusive_async(lock: Path, deadline_s: float, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """The same for asyncio. Not in a thread: one whose caller was cancelled would take the lock later, and never let go of it."""
    with _opened(lock) as fd:
        for _ in _tries(fd, lock.name, deadline_s, waiting):
            await asyncio.sleep(TRY_EVERY_S)
        yield


@contextmanager
def _opened(lock: Path) -> Iterator[int]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _tries(fd: int, name: str, deadline_s: float, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Yields after every try that failed, until one does not."""
    end = time.monotonic() + deadline_s
    while not _try_lock(fd):
        if waiting is not None:
            waiting()
            waiting = None
        if time.monotonic() > end:
            raise BuildFailed(f"{name}: held by another process for {deadline_s:.0f} s now; end it and try again")
        yield


@contextmanager
def workplace(tmp: Path, kind: str, remove: Callable[[Path], None] = remove_tree) -> Iterator[Workplace]:
    """A new directory tmp/<kind>-<random>, removed at the end unless renamed away. Abandoned ones of that kind go first."""
    tmp.mkdir(parents=True, exist_ok=True)
    sweep(tmp, kind, remove)
    path, fd = _make(tmp, kind)
    try:
        yield Workplace(path, fd)
    finally:
        try:
            if path.exists():
                remove(path)
        finally:
            os.close(fd)  # what could not be removed is the next one's to sweep


def sweep(tmp: Path, kind: str, remove: Callable[[Path], None] = remove_tree) -> list[Path]:
    """Remove work places of `kind` that nobody holds; returns what was removed."""
    return _remove_unheld(sorted(tmp.glob(f"{kind}-*")), remove, lambda path: False)


def sweep_folders(parent: Path, known: Callable[[str], bool]) -> list[Path]:
    """Remove published folders that no record knows and nobody holds: their maker died before it could tell of them."""
    unknown = [path for path in sorted(parent.iterdir()) if not known(path.name)]
    return _remove_unheld(unknown, remove_tree, lambda path: known(path.name))


def _remove_unheld(paths: list[Path], remove: Callable[[Path], None], keep: Callable[[Path], bool]) -> list[Path]:
    removed = []
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _try_lock(fd) and not keep(path):
                remove(path)
                removed.append(path)
        finally:
            os.close(fd)
    return removed


def publish(source: Path, target: Path) -> None:
    """Make the directory `source` appear as `target`, with everything in it on disk before its name is. Files must be few."""
    for directory, _, files in os.walk(source):
        for name in files:
            flush(Path(directory) / name)
        flush(Path(directory))
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
    flush(target.parent)


def remove_published(path: Path, tmp: Path) -> None:
    """Remove what was published, in one visible step: half of it would pass for the whole when the same is wanted again."""
    with workplace(tmp, "removed") as place, suppress(FileNotFoundError):
        path.rename(place.path / path.name)


def flush(path: Path) -> None:
    """fsync a file or directory; a symbolic link has nothing of its own to flush."""
    if path.is_symlink():
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make(tmp: Path, kind: str) -> tuple[Path, int]:
    # A sweeper may take the directory between its creation and our lock: then it is gone, and we make another.
    while True:
        path = tmp / f"{kind}-{secrets.token_hex(6)}"
        path.mkdir(mode=0o755)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _try_lock(fd) and path.exists():
            return path, fd
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
