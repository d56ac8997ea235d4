"""Bytes to and from a port of a sandbox, over a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed

from belljar.sdk._async.adaptors import WebSocket, receive
from belljar.sdk.errors import Lost

if TYPE_CHECKING:
    from typing import Self

# The only text that is sent, in either direction: no more bytes will come this way.
EOF = '{"eof":true}'
PIECE = 64 * 1024


class AsyncConnection:
    """One connection. Both directions have back-pressure; leaving it before both have ended resets it.

    Where much goes both ways at once, `ports.forward` is the better choice: the plain one reads nothing while a write waits.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if data := await self.read():
            return data
        raise StopAsyncIteration

    async def read(self, timeout: float | None = None) -> bytes:
        """Some bytes, as they come; none at the end. TimeoutError if nothing comes in time."""
        while not self._ended:
            try:
                message = await receive(self._socket, timeout)
            except ConnectionClosed as problem:
                raise Lost(f"the connection broke: {problem}") from problem
            if message == EOF:
                self._ended = True
            elif not isinstance(message, bytes):
                raise Lost(f"the server sent {message[:80]!r} where bytes were due")
            elif message:
                return message
        return b""

    async def write(self, data: bytes) -> None:
        """All of `data`; waits while the sandbox's program takes none."""
        for start in range(0, len(data), PIECE):
            await self._send(bytes(data[start : start + PIECE]))

    async def write_eof(self) -> None:
        """Nothing more will be written; reading goes on."""
        await self._send(EOF)

    async def aclose(self) -> None:
        await self._socket.close()

    async def _send(self, message: str | bytes) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as problem:
            raise Lost(f"the connection is closed: {problem}") from problem
