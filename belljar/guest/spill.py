"""Files in the sandbox that get the whole of what is too long to be sent: written by worker threads, as the context's user.

A disk that is slow or full must not hold the agent up, so what is to be written waits in memory, a bounded amount of it: whoever
produces more looks at `behind` and stops reading until `on_room`.
"""

# Paths stay strings, as in the rest of the agent.
# ruff: noqa: PTH101, PTH102, PTH118

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from belljar.guest.accounts import Account
from belljar.guest.workers import Workers

FOLDER: Final = "/tmp/belljar-output"

_HIGH_WATER: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 1024 * 1024  # less is not worth a thread's time
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_END_DEADLINE_S: Final = 60.0


class Spill:
    """One file. `close` is the end; `finished` is then called once everything is on its way to the disk, or lost."""

    def __init__(self, workers: Workers, account: Account, name: str, on_room: Callable[[], None]) -> None:
        self.path = os.path.join(FOLDER, name)
        self.problem: str | None = None
        self.exists = False
        self._workers = workers
        self._account = account
        self._on_room = on_room
        self._pending: list[bytes] = []
        self._size = 0
        self._closed = False
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def behind(self) -> bool:
        return self._size >= _HIGH_WATER

    def write(self, data: bytes) -> None:
        if self.problem is None:
            self._pending.append(data)
            self._size += len(data)
            if self._size >= _AT_ONCE:
                self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def wait_finished(self) -> None:
        """After `close`. A disk that does not come back is given up."""
        done, _ = await asyncio.wait([self._task], timeout=_END_DEADLINE_S)
        if not done:
            self.problem = "the disk did not answer"

    async def _run(self) -> None:
        fd = -1
        try:
            fd = await self._workers.run(self._account, _open, self.path)
            self.exists = True
            while True:
                if not self._closed:
                    await self._news.wait()
                    self._news.clear()
                data = b"".join(self._pending)
                self._pending.clear()
                if data:
                    await self._workers.run(self._account, _write, fd, data)
                    was_behind, self._size = self.behind, self._size - len(data)
                    if was_behind and not self.behind:
                        self._on_room()
                elif self._closed:
                    return
        except OSError as error:
            self.problem = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error.strerror)
            self._pending.clear()
            self._size = 0
            self._on_room()
        finally:
            if fd >= 0:
                os.close(fd)


def _open(path: str) -> int:
    """With the user's own rights: whatever a user puts in the place of this folder or file, it can only be the user's."""
    with suppress(FileExistsError):
        os.mkdir(FOLDER)
        os.chmod(FOLDER, 0o1777)
    fd = os.open(path, _FLAGS, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EEXIST, "something else is in the place of the file")
    return fd


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
