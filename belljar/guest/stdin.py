"""What a process is sent: written as its pipe or terminal takes it, credited to the sender only then."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final

Written = Callable[[int, bool], None]  # bytes of the chunk, and whether the process took them

_END_OF_TRANSMISSION: Final = b"\x04"


class Stdin:
    """The writing end of a process's input. The agent owns the descriptor, except for a terminal's."""

    def __init__(self, fd: int, terminal: bool) -> None:
        self._fd = fd
        self._terminal = terminal
        self._queue: deque[tuple[memoryview, int, Written]] = deque()
        self._waiting = False
        self._ending = False
        self.closed = False

    def write(self, data: bytes, written: Written) -> None:
        if self.closed or self._ending:
            written(len(data), False)
            return
        self._queue.append((memoryview(data), len(data), written))
        self._pump()

    def end(self) -> None:
        """Close it when everything is written. A terminal cannot be closed for its reader: it gets ^D instead."""
        if self._terminal and not self._ending:
            self.write(_END_OF_TRANSMISSION, lambda size, taken: None)
        elif not self._terminal:
            self._ending = True
            self._pump()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self._fd)
        if not self._terminal:
            os.close(self._fd)
        while self._queue:
            _, size, written = self._queue.popleft()
            written(size, False)

    def _pump(self) -> None:
        while self._queue and not self.closed:
            rest, size, written = self._queue[0]
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                self._wait()
                return
            except OSError:  # the process closed its input
                self.close()
                return
            if rest:
                self._queue[0] = (rest, size, written)
            else:
                self._queue.popleft()
                written(size, True)
        if self._ending:
            self.close()

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        asyncio.get_running_loop().remove_writer(self._fd)
        self._waiting = False
        self._pump()
