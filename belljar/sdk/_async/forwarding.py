"""A port of this machine that leads to a port of a sandbox. Written by hand: `_sync/forwarding.py` runs this in a thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from belljar.errors import BelljarError
from belljar.sdk._async.connection import PIECE, AsyncConnection
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk.errors import CannotListen

logger = logging.getLogger("belljar.sdk")

LOOPBACK = "127.0.0.1"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Stream(Protocol):
    """A connection to a port of a sandbox, however it is made."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def write_eof(self) -> None: ...
    async def aclose(self) -> None: ...


Dial = Callable[[], Awaitable[Stream]]


@asynccontextmanager
async def forwarding(transport: AsyncTransport, path: str, local_port: int) -> AsyncIterator[int]:
    """Listens while it is entered; gives the port. `path` is where the server makes connections."""

    async def dial() -> AsyncConnection:
        return AsyncConnection(await transport.websocket(path, {}))

    async with leading(dial, LOOPBACK, local_port, _log) as (_, port):
        yield port


def _log(problem: BelljarError) -> None:
    logger.warning("a forwarded connection was not made, or broke: %s", problem.message)


@asynccontextmanager
async def leading(
    dial: Dial, address: str, local_port: int, tell: Callable[[BelljarError], None]
) -> AsyncIterator[tuple[str, int]]:
    """Listens while it is entered, and leads every connection to one that `dial` makes; gives the address and port."""
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        task.add_done_callback(answering.discard)
        try:
            async with aclosing(await dial()) as stream:
                await _join(reader, writer, stream)
            writer.close()
        except BelljarError as problem:
            tell(problem)
        except (OSError, asyncio.CancelledError):
            pass  # whoever connected has gone, or the forwarding ends
        finally:
            if not writer.is_closing():
                # A reset: whoever waits here must not take this for the end of the data.
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()

    try:
        server = await asyncio.start_server(answer, address, local_port)
    except OSError as problem:
        raise CannotListen(f"cannot listen on {address} port {local_port}: {problem.strerror or problem}") from problem
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
    """Both directions, each to its own end. The first that breaks ends the other."""

    async def inward() -> None:
        while data := await reader.read(PIECE):
            await stream.write(data)
        await stream.write_eof()

    async def outward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    tasks = [asyncio.create_task(inward()), asyncio.create_task(outward())]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
