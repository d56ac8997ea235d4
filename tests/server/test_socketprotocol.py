"""WebSockets whose clients flood: what waits for them stays small, and what is meant well arrives whole."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio
import uvicorn

from belljar.server.protocol import HANG_UP, InterimProtocol
from belljar.server.socketprotocol import BoundedSocketProtocol
from tests.server.serving import serving

TEXT, BINARY, PING, PONG, CONTINUED = 1, 2, 9, 10, 0
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Recorded(BoundedSocketProtocol):
    made: ClassVar[list[Recorded]] = []

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.made.append(self)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Repeats every message; /refused is refused, and /cut is hung up on."""
    if scope["path"] == "/refused":
        await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"no"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    if scope["path"] == "/cut":
        scope["extensions"][HANG_UP]()
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=InterimProtocol, ws=Recorded, lifespan="off", log_config=None, ws_ping_interval=None)
    async with serving(config) as number:
        yield number


async def opened(port: int, path: str = "/") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    writer.write(UPGRADE.format(path=path).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


def frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack("!H", len(data))
    return bytes([(0x80 if last else 0) | opcode]) + size + bytes(4) + data


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(30):
        first, size = await reader.readexactly(2)
        if size == 126:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
        return first & 0x0F, await reader.readexactly(size)


async def test_a_ping_is_answered(port: int) -> None:
    reader, writer = await opened(port)
    writer.write(frame(PING, b"there?"))
    assert await read_frame(reader) == (PONG, b"there?")
    writer.close()


async def test_answers_to_pings_that_nobody_reads_do_not_pile_up(port: int) -> None:
    reader, writer = await opened(port)
    server_side = Recorded.made[-1]
    writer.transport.pause_reading()
    for _ in range(300):
        writer.write(frame(PING, bytes(125)) * 500)  # 20 MB in all: more than the system's buffers of both ends take
        await writer.drain()
    waiting = server_side.transport.get_write_buffer_size()
    assert waiting < 2_000_000, f"{waiting} bytes wait for a client that reads nothing"
    writer.transport.resume_reading()
    writer.write(frame(TEXT, b"still here"))
    while (await read_frame(reader))[0] == PONG:
        pass
    writer.close()


async def test_fragments_are_joined_as_they_come(port: int) -> None:
    reader, writer = await opened(port)
    server_side = Recorded.made[-1]
    writer.write(frame(TEXT, b"one ", last=False))
    for _ in range(100):
        writer.write(frame(CONTINUED, last=False) * 1000)
        await writer.drain()
    writer.write(frame(CONTINUED, b"two", last=False) + frame(PING, b"all of it"))
    assert await read_frame(reader) == (PONG, b"all of it")
    assert len(server_side.frames) == 1, f"{len(server_side.frames)} fragments are kept"
    writer.write(frame(CONTINUED, b" three"))
    assert await read_frame(reader) == (TEXT, b"one two three")
    writer.write(frame(BINARY, b"\xff", last=False) + frame(CONTINUED, b"\xfe"))
    assert await read_frame(reader) == (BINARY, b"\xff\xfe")
    writer.close()


async def test_a_refusal_is_no_fault_of_the_application(port: int, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        writer.write(UPGRADE.format(path="/refused").encode())
        async with asyncio.timeout(30):
            answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 404 ") and answer.endswith(b"no")
    assert caplog.messages == []
    writer.close()


async def test_the_application_can_hang_up(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(UPGRADE.format(path="/cut").encode())
    async with asyncio.timeout(30):
        try:
            while await reader.read(1000):
                pass
        except ConnectionResetError:
            pass
    writer.close()
