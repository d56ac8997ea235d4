"""One holder at a time, who says who it is: a lock on a file that goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from belljar.errors import Conflict


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. `address` is where it can be reached, if it can."""

    pid: int
    address: str | None = None


class Hold:
    """A lock that this process has."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, address: str | None) -> None:
        """Say who holds it. The old words go only when the new ones are there: somebody may be reading."""
        words = json.dumps(asdict(Holder(os.getpid(), address))).encode()
        os.pwrite(self._fd, words.ljust(256), 0)
        os.ftruncate(self._fd, max(256, len(words)))


@contextmanager
def hold(path: Path, what: str) -> Iterator[Hold]:
    """Hold the lock at `path` until the block ends, or raise Conflict, which names the holder."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(fd)
            who = f"process {holder.pid}" if holder else "another process"
            where = f" at {holder.address}" if holder and holder.address else ""
            raise Conflict(f"{what} already: {who}{where}; stop it first, or use another home (--home, BELLJAR_HOME)") from None
        held = Hold(fd)
        held.tell(None)
        yield held
    finally:
        os.close(fd)


def find_holder(path: Path) -> Holder | None:
    """Who holds the lock at `path` now. What a holder that is gone has left there does not count."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(fd)
    finally:
        os.close(fd)
    return None


def _read(fd: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError):
        return None
