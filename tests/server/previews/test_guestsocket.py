"""The client's end of a WebSocket over a scripted port: hostile servers, and ones that do not read."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from typing import Any, cast

import pytest
from starlette.requests import HTTPConnection

from belljar.errors import SandboxError
from belljar.server.previews import guestsocket as module
from belljar.server.previews.guestsocket import MAX_UNSENT_BYTES, GuestSocket
from belljar.server.previews.target import Target

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PING = b"\x89\x7d" + b"p" * 125


class Port:
    """Takes the handshake, says `first` with its answer, and then lines until they are used up."""

    def __init__(self, first: bytes = b"", lines: Any = (), *, reads: bool = True) -> None:
        self._first, self._lines, self._reads = first, iter(lines), reads
        self._asked = asyncio.Event()
        self._answered = False
        self.heard = b""
        self.taken = 0

    async def write(self, data: bytes) -> None:
        self.heard += data
        self._asked.set()
        if self._answered and not self._reads:
            await asyncio.Event().wait()

    async def write_eof(self) -> None:
        pass

    async def read(self) -> bytes:
        await self._asked.wait()
        await asyncio.sleep(0)
        if not self._answered:
            self._answered = True
            found = re.search(rb"Sec-WebSocket-Key: (\S+)", self.heard)
            assert found
            accept = base64.b64encode(hashlib.sha1(found.group(1) + GUID).digest())
            head = b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept
            return head + b"\r\n\r\n" + self._first
        line = next(self._lines, b"")
        self.taken += len(line)
        return cast(bytes, line)


def connection() -> HTTPConnection:
    scope = {"type": "websocket", "headers": [(b"host", b"h")], "scheme": "ws", "client": ("127.0.0.1", 1), "subprotocols": []}
    return HTTPConnection(scope)


async def heard_from(port: Port) -> tuple[list[str | bytes], tuple[int, str]]:
    async with asyncio.timeout(30), GuestSocket(Target(cast(Any, None), "sb-1", 80, b"/"), cast(Any, port)) as guest:
        assert (await guest.open(connection())).status_code == 101
        return [message async for message in guest.messages()], guest.ended()


async def test_what_came_with_the_handshake_is_not_lost() -> None:
    messages, ended = await heard_from(Port(b"\x81\x02hi", [b"\x82\x01", b"x\x88\x05\x0f\xa1bye"]))
    assert messages == ["hi", b"x"] and ended == (4001, "bye")


@pytest.mark.parametrize(
    ("bytes_sent", "code"),
    [
        (b"", 1011), (b"\x81", 1011), (b"\x88\x00", 1000), (b"\x88\x01x", 1002), (b"\xf1\x00", 1002), (b"\x80\x00", 1002),
        (b"\x81\x7f" + (2**40).to_bytes(8, "big"), 1009), (b"\x81\x81abcdx", 1002), (b"\x88\x02\x03\xed", 1002),
    ],
)  # fmt: skip
async def test_however_it_ends_the_client_gets_a_code_that_may_be_sent(bytes_sent: bytes, code: int) -> None:
    messages, ended = await heard_from(Port(bytes_sent))
    assert messages == [] and ended[0] == code


async def test_a_server_that_pings_without_reading_is_bounded() -> None:
    def pings() -> Any:
        while True:
            yield PING * 500

    port = Port(PING, pings(), reads=False)
    guest = GuestSocket(Target(cast(Any, None), "sb-1", 80, b"/"), cast(Any, port))
    async with guest:
        await guest.open(connection())
        reading = asyncio.create_task(anext(guest.messages()))
        before = -1
        async with asyncio.timeout(30):
            while port.taken != before:
                before = port.taken
                await asyncio.sleep(0.05)
        assert not reading.done() and port.taken < 3 * MAX_UNSENT_BYTES
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_message_waits_until_it_was_taken() -> None:
    port = Port(reads=False)
    async with GuestSocket(Target(cast(Any, None), "sb-1", 80, b"/"), cast(Any, port)) as guest:
        await guest.open(connection())
        sending = asyncio.create_task(guest.send(b"x"))
        done, _ = await asyncio.wait([sending], timeout=0.2)
        assert not done
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_handshakes_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (b"nonsense\r\n\r\n", b"", b"HTTP/1.1 101 OK\r\n\r\n", b"HTTP/1.1 101 OK\r\nX: " + b"y" * 200_000):

        class Wrong(Port):
            async def read(self, answer: bytes = answer) -> bytes:
                said, self._first = (answer, b"said") if self._first != b"said" else (b"", b"said")
                return said

        async with GuestSocket(Target(cast(Any, None), "sb-1", 80, b"/"), cast(Any, Wrong())) as guest:
            with pytest.raises(SandboxError, match="WebSocket server"):
                await guest.open(connection())
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.05)

    class Silent(Port):
        async def read(self) -> bytes:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    async with GuestSocket(Target(cast(Any, None), "sb-1", 80, b"/"), cast(Any, Silent())) as guest:
        with pytest.raises(SandboxError, match="handshake"):
            await guest.open(connection())
