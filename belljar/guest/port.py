"""The agent's end of the byte stream: a non-blocking descriptor inside an asyncio loop.

Linux's virtio_console does not behave like a socket. With no host connected a read returns 0 and poll reports POLLHUP for ever, so
a level-triggered selector would spin: the port is watched edge-triggered, by an epoll object of its own inside the loop's. A read
returns one buffer of 4 KiB at most, so reading goes on until nothing is left, and a write takes 32 KiB at most. And as an
edge may be lost over a snapshot, a slow timer looks again.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Final

_READ_SIZE: Final = 64 * 1024
_READS_AT_ONCE: Final = 64
_WRITE_SIZE: Final = 32 * 1024
_LOOK_AGAIN_S: Final = 1.0
_IN: Final = select.EPOLLIN | select.EPOLLET
_IN_OUT: Final = _IN | select.EPOLLOUT


class Port:
    """`on_data` gets what was read; `take_output` is asked for more to write whenever the last piece has gone."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], take_output: Callable[[], bytes], on_eof: Callable[[], None]
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._on_data = on_data
        self._take_output = take_output
        self._on_eof = on_eof
        self._pending = memoryview(b"")
        self._stuck = False
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._epoll.register(fd, _IN)
        self._loop.add_reader(self._epoll.fileno(), self._on_ready)
        self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def drop_output(self) -> None:
        """Forget what was not written yet: it belongs to a session that is over."""
        self._pending = memoryview(b"")

    def flush(self) -> None:
        while True:
            if not self._pending:
                self._pending = memoryview(self._take_output())
                if not self._pending:
                    break
            try:
                self._pending = self._pending[os.write(self._fd, self._pending[:_WRITE_SIZE]) :]
            except BlockingIOError:
                break
            except OSError:  # the host's end is going away; a new session drops this output
                break
        stuck = bool(self._pending)
        if stuck != self._stuck:
            self._stuck = stuck
            self._epoll.modify(self._fd, _IN_OUT if stuck else _IN)

    def _on_ready(self) -> None:
        self._epoll.poll(0)  # consumes the edge
        self._read()
        if self._stuck:
            self.flush()

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look_again)
        self._on_ready()

    def _read(self) -> None:
        chunks = []
        try:
            for _ in range(_READS_AT_ONCE):
                chunk = os.read(self._fd, _READ_SIZE)
                if not chunk:
                    self._on_eof()
                    break
                chunks.append(chunk)
            else:
                self._loop.call_soon(self._read)
        except BlockingIOError:
            pass
        except OSError:
            self._on_eof()
        if chunks:
            self._on_data(b"".join(chunks) if len(chunks) > 1 else chunks[0])

