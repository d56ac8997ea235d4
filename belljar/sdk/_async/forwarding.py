"""A port of this machine that leads to a port of a sandbox. Written by hand: `_sync/forwarding.py` runs this in a thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from belljar.sdk._async.connection import PIECE, AsyncConnection
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk.errors import PandastackError

logger = logging.getLogger("belljar.sdk")

LOOPBACK = "127.0.0.1"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@asynccontextmanager
async def forwarding(transport: AsyncTransport, path: str, local_port: int) -> AsyncIterator[int]:
    """Listens while it is entered; gives the port. `path` is where the server makes connections."""
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        task.add_done_callback(answering.discard)
        try:
            async with AsyncConnection(await transport.websocket(path, {})) as connection:
                await _join(reader, writer, connection)
            writer.close()
        except PandastackError as problem:
            logger.warning("a forwarded connection was not made, or broke: %s", problem.message)
        except (OSError, asyncio.CancelledError):
            pass  # whoever connected has gone, or the forwarding ends
        finally:
            if not writer.is_closing():
                # A reset: whoever waits here must not take this for the end of the data.
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()

    server = await asyncio.start_server(answer, LOOPBACK, local_port)
    try:
        port: int = server.sockets[0].getsockname()[1]
        yield port
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: AsyncConnection) -> None:
    """Both directions, each to its own end. The first that breaks ends the other."""

    async def inward() -> None:
        while data := await reader.read(PIECE):
            await connection.write(data)
        await connection.write_eof()

    async def outward() -> None:
        async for data in connection:
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
