"""Connections that take their time, or never stop: each ends by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uvicorn

from belljar.server import protocol
from tests.server.serving import serving

# More than the buffers of a connection's two ends hold.
MUCH = 64 * 1024 * 1024


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once and reads no body; /wait never answers, and /much says a lot."""
    if scope["path"] == "/wait":
        await receive()
        await receive()
    body = b"x" * MUCH if scope["path"] == "/much" else b"ok"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest_asyncio.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    monkeypatch.setattr(protocol, "LINGER_S", 0.3)
    monkeypatch.setattr(protocol, "LAST_WORD_S", 0.1)
    monkeypatch.setattr(protocol, "STALLED_S", 0.5)
    config = uvicorn.Config(app, http=protocol.InterimProtocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
    async with serving(config) as number:
        yield number


async def ending(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """All that comes back until the server ends the connection, which it must; the pieces are sent slowly meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def test_a_silent_connection_ends(port: int) -> None:
    answer = await ending(port)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too_slow"


@pytest.mark.parametrize("first", [b"", b"\r\n", b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_drips_is_cut_off(port: int, first: bytes) -> None:
    dripping = b"X-Slow: " + b"x" * 1000 if first.startswith(b"GET / HTTP") else b"x" * 1000
    answer = await ending(port, first, *(bytes([byte]) for byte in dripping), pause_s=0.02)
    assert answer.startswith(b"HTTP/1.1 4"), answer


async def test_a_second_head_that_drips_is_cut_off(port: int) -> None:
    dripping = [bytes([byte]) for byte in b"GET /" + b"x" * 1000]
    answer = await ending(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", *dripping, pause_s=0.02)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in answer


async def test_a_body_that_nobody_wants_is_not_read_for_ever(port: int) -> None:
    endless = [b"10\r\n" + b"x" * 16 + b"\r\n"] * 2000
    answer = await ending(port, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", *endless, pause_s=0.01)
    assert answer.startswith(b"HTTP/1.1 200 ") or answer == b""


async def test_a_body_that_was_promised_and_never_sent_does_not_keep_the_connection(port: int) -> None:
    answer = await ending(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_nonsense_in_the_middle_of_a_call_ends_it(port: int) -> None:
    answer = await ending(port, b"POST /wait HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_there_are_only_so_many_connections(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_most_connections", lambda: 1)
    monkeypatch.setattr(protocol, "HEAD_S", 30.0)
    first = await asyncio.open_connection("127.0.0.1", port)
    first[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await first[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
    answer = await ending(port)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after" in answer
    first[1].close()


async def ask_for_much(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    writer.write(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    return reader, writer


async def test_a_client_that_takes_nothing_is_cut_off(port: int) -> None:
    reader, writer = await ask_for_much(port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(3)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    got = 0
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        while piece := await reader.read(1 << 20):
            got += len(piece)
        raise asyncio.IncompleteReadError(b"", MUCH)
    assert got < MUCH
    writer.close()


async def test_a_client_that_is_only_slow_gets_everything(port: int) -> None:
    reader, writer = await ask_for_much(port)
    got = 0
    async with asyncio.timeout(60):
        while got < MUCH:
            piece = await reader.read(4 << 20)
            assert piece, f"cut off after {got} bytes"
            got += len(piece)
            if got % (8 << 20) < len(piece):
                await asyncio.sleep(0.2)
    writer.close()
