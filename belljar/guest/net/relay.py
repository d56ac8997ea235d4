"""One TCP connection of the guest and one channel of the wire: bytes both ways, ends and resets too.

What a program sends is read from the socket only while the channel has room: a slow peer outside slows the program down. What the
host sends is written to the socket, and credit goes back when the socket has taken it, so at most a window waits here. An END is a
FIN, in either direction: half a connection may be over while the other half goes on. A RESET is a RST.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from belljar.guest.channel import Channel
from belljar.guest.failure import Failure

_READ_SIZE: Final = 64 * 1024
_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def reset_socket(sock: socket.socket) -> None:
    """Close it so that the other side sees a reset, not an orderly end."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
    sock.close()


class Relay:
    """Runs by itself from the start, until both directions have ended or one side has reset."""

    def __init__(self, channel: Channel, sock: socket.socket, on_closed: Callable[[], None]) -> None:
        self._channel = channel
        self._sock = sock
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._unsent = b""  # what was read and found no room: little, and only around a mark of the wire
        self._unwritten: deque[tuple[memoryview, int]] = deque()
        self._reading = False
        self._writing = False
        self._host_ended = False  # nothing more comes from the host
        self._shut = False  # and the program was told
        self._deaf = False  # the program takes no more, and may still have said something: a server that refuses a body, say
        self._program_ended = False
        self._closed = False
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.on_room = self._on_room
        channel.on_end = self._on_host_end
        channel.on_left = lambda by_host: self._reset()
        channel.take_over(self._on_host_data)
        self._read_if_room()

    # -- program to host

    def _on_room(self) -> None:
        if self._unsent:
            self._unsent = self._unsent[self._channel.send_now(self._unsent) :]
        self._read_if_room()

    def _read_if_room(self) -> None:
        wanted = not self._closed and not self._program_ended and not self._unsent and self._channel.room() > 0
        if wanted and not self._reading:
            self._loop.add_reader(self._sock, self._on_readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._sock)
        self._reading = wanted

    def _on_readable(self) -> None:
        room = min(self._channel.room(), _READ_SIZE)
        if room > 0:
            try:
                data = self._sock.recv(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._fail(error)
                return
            if data:
                self._unsent = data[self._channel.send_now(data) :]
            else:
                self._program_ended = True
                self._channel.end()
                self._close_if_over()
        self._read_if_room()

    # -- host to program

    def _on_host_data(self, data: bytes) -> None:
        if self._deaf:
            self._channel.consumed(len(data))
            return
        self._unwritten.append((memoryview(data), len(data)))
        if not self._writing:
            self._write()

    def _on_host_end(self) -> None:
        self._host_ended = True
        if not self._writing:
            self._write()

    def _write(self) -> None:
        while self._unwritten and not self._closed:
            rest, size = self._unwritten[0]
            try:
                rest = rest[self._sock.send(rest) :]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._give_up_writing()
                break
            if rest:
                self._unwritten[0] = (rest, size)
            else:
                self._unwritten.popleft()
                self._channel.consumed(size)
        self._watch_for_room()
        if self._host_ended and not self._unwritten and not self._shut and not self._closed:
            self._shut = True
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._close_if_over()

    def _give_up_writing(self) -> None:
        """What the program sent before it closed is still read; its end, or the reset, comes after that."""
        self._deaf = True
        for _, size in self._unwritten:
            self._channel.consumed(size)
        self._unwritten.clear()

    def _watch_for_room(self) -> None:
        wanted = bool(self._unwritten) and not self._closed
        if wanted and not self._writing:
            self._loop.add_writer(self._sock, self._write)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._sock)
        self._writing = wanted

    # -- the end

    def _close_if_over(self) -> None:
        if self._program_ended and (self._shut or self._deaf):
            self._close()
            self._sock.close()

    def _fail(self, error: OSError) -> None:
        self._channel.disconnect()
        self._channel.fail(Failure("connection_reset", f"the program's side of the connection broke: {error.strerror}"))
        self._reset()

    def _reset(self) -> None:
        if not self._closed:
            self._close()
            reset_socket(self._sock)

    def _close(self) -> None:
        self._closed = True
        if self._reading:
            self._loop.remove_reader(self._sock)
        if self._writing:
            self._loop.remove_writer(self._sock)
        self._reading = self._writing = False
        self._unwritten.clear()
        self._on_closed()
