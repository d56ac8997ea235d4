"""The two ends of a connection, with the same few calls: a channel of the wire, and a socket whose bytes are counted.

`read` returns b"" at the end; `end` says that nothing more will be written; `abort` ends both ways at once, as a reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from belljar.egress.limits import Usage
from belljar.egress.log import Connection, Log

READ_SIZE: Final = 128 * 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close sends RST


class Channel(Protocol):
    """What is used of a link's channel."""

    async def send(self, data: bytes) -> None: ...
    async def message(self, body: dict[str, Any]) -> None: ...
    def end(self) -> None: ...
    async def receive(self) -> Any: ...
    async def aclose(self) -> None: ...


class Link(Protocol):
    """What is used of a sandbox's link."""

    async def open(self, op: str, params: dict[str, Any]) -> Any: ...
    async def request(self, op: str, params: dict[str, Any], timeout_s: float) -> dict[str, Any]: ...


class Stream(Protocol):
    async def read(self, size: int = READ_SIZE) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def end(self) -> None: ...
    async def abort(self) -> None: ...


class Spent(Exception):
    """The sandbox has moved all the bytes that it may move."""


class ChannelStream:
    """The guest's end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def read(self, size: int = READ_SIZE) -> bytes:
        item = await self._channel.receive()
        data: bytes = getattr(item, "data", b"")  # a message is nothing that an agent sends here, and ends the connection
        return data

    async def write(self, data: bytes) -> None:
        await self._channel.send(data)

    async def end(self) -> None:
        self._channel.end()

    async def abort(self) -> None:
        await self._channel.aclose()


class SocketStream:
    """The end outside. Here bytes are counted, and slowed down where there is a limit."""

    def __init__(self, sock: socket.socket, usage: Usage, log: Log, line: Connection) -> None:
        self._sock = sock
        self._usage, self._log, self._line = usage, log, line
        self._loop = asyncio.get_running_loop()
        self.active = time.monotonic()

    async def read(self, size: int = READ_SIZE) -> bytes:
        bucket = self._usage.incoming
        if self._usage.spent:
            raise Spent
        data = await self._loop.sock_recv(self._sock, bucket.piece(size))
        if data:
            data = data[: self._grant(len(data))]
            self._log.moved(self._line, incoming=len(data))
            await bucket.take(len(data))
        return data

    async def write(self, data: bytes) -> None:
        bucket, rest = self._usage.outgoing, memoryview(data)
        while rest:
            piece = rest[: self._grant(bucket.piece(len(rest)))]
            self._log.moved(self._line, outgoing=len(piece))
            await bucket.take(len(piece))
            await self._loop.sock_sendall(self._sock, piece)
            rest = rest[len(piece) :]

    async def end(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    async def abort(self) -> None:
        if self._sock.fileno() >= 0:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._sock.close()

    def close(self) -> None:
        self._sock.close()

    def _grant(self, size: int) -> int:
        granted = self._usage.grant(size)
        if not granted:
            raise Spent
        self.active = time.monotonic()
        return granted


async def pump(source: Stream, sink: Stream) -> None:
    """Everything from one to the other, at the pace of the slower, and then the end."""
    while data := await source.read():
        await sink.write(data)
    await sink.end()


async def at_once(*works: Coroutine[Any, Any, None]) -> None:
    """All of them. The first failure ends the others and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
