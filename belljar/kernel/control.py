"""The kernel's end of its control socket, and the order between what is printed and what is sent.

Output goes through pipes and events through a socket. The agent drains the pipes before it forwards an event, so it is enough to
flush before each one.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from belljar.kernel.interrupts import Gate
from belljar.wire import pipe

if TYPE_CHECKING:
    import asyncio

RECEIVE_SIZE = 256 * 1024


class Control:
    """Messages to and from the agent. `n` is the number of the cell that runs, or ran last."""

    def __init__(self, sock: socket.socket, gate: Gate) -> None:
        self._sock = sock
        self._gate = gate
        self._lock = threading.Lock()
        self._decoder = pipe.Decoder()
        self._received: deque[tuple[dict[str, Any], bytes]] = deque()
        self._owner = os.getpid()
        self._stdout: io.TextIOWrapper | None = None
        self._stderr: io.TextIOWrapper | None = None
        self.n = 0

    def receive(self, loop: asyncio.AbstractEventLoop | None) -> tuple[dict[str, Any], bytes] | None:
        """The next message; None when the agent has closed its end. The user's tasks on `loop` go on while we wait."""
        while not self._received:
            if loop is not None and not loop.is_closed():
                self._wait_in(loop)
            try:
                data = self._sock.recv(RECEIVE_SIZE)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += self._decoder.feed(data)
        return self._received.popleft()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """ValueError if it is longer than the agent takes."""
        if os.getpid() != self._owner:
            return  # a process that the user forked: the socket is not its own
        encoded = pipe.encode(message, blob)
        with self._gate, self._lock:
            self.flush()
            try:
                self._sock.sendall(encoded)
            except OSError:
                os._exit(0)  # the agent is gone, and with it everyone who could read what follows

    def flush(self) -> None:
        for stream in (self._stdout, self._stderr, sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, detached, or replaced by the user's code
                if stream is not None:
                    stream.flush()

    def renew_streams(self) -> None:
        """sys.stdout and sys.stderr over fds 1 and 2; again if a cell has closed them."""
        if _unusable(self._stdout):
            self._stdout = sys.stdout = _open_stream(1)
        if _unusable(self._stderr):
            self._stderr = sys.stderr = _open_stream(2)

    def leave_if_forked(self) -> None:
        """A cell that called os.fork() comes back in two processes; only one of them is the kernel."""
        if os.getpid() != self._owner:
            self.flush()
            os._exit(0)

    def _wait_in(self, loop: asyncio.AbstractEventLoop) -> None:
        readable = loop.create_future()

        def wake() -> None:
            if not readable.done():
                readable.set_result(None)

        loop.add_reader(self._sock, wake)
        try:
            loop.run_until_complete(readable)
        except BaseException:
            traceback.print_exc()  # a task of the user's went down with SystemExit or the like
        finally:
            loop.remove_reader(self._sock)


def _open_stream(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(open(fd, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _unusable(stream: io.TextIOWrapper | None) -> bool:
    try:
        return stream is None or stream.closed
    except ValueError:  # detached: the user has wrapped the buffer anew
        return False
