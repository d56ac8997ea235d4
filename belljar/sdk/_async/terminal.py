"""A terminal in a sandbox, over a WebSocket: bytes both ways, sizes and the end as messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from websockets.exceptions import ConnectionClosed

from belljar.sdk._async.adaptors import WebSocket, receive
from belljar.sdk._async.interacting import interact
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk.errors import Lost, error_in_stream


class AsyncTerminal:
    """Iterate over what appears on it; `send` what is typed. `exit_code` is there once what ran in it has ended."""

    def __init__(self, socket: WebSocket, path: str) -> None:
        self._socket = socket
        self._path = path
        self.exit_code: int | None = None

    @classmethod
    async def open(cls, transport: AsyncTransport, path: str, params: Mapping[str, Any]) -> Self:
        return cls(await transport.websocket(path, params), path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        found = await self.receive()
        if found is None:
            raise StopAsyncIteration
        return found

    async def receive(self, timeout: float | None = None) -> bytes | None:
        """The next bytes; None at the end. TimeoutError if nothing comes in time."""
        while self.exit_code is None:
            try:
                message = await receive(self._socket, timeout)
            except ConnectionClosed as problem:
                raise Lost(f"the connection to the terminal broke: {problem}") from problem
            if isinstance(message, bytes):
                return message
            self._take(message)
        return None

    def _take(self, message: str) -> None:
        try:
            fields = json.loads(message)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise Lost(f"the server sent {message[:80]!r} where a terminal's end was due")
        if "error" in fields:
            raise error_in_stream(fields, method="GET", path=self._path)
        if isinstance(fields.get("exit"), int):
            self.exit_code = fields["exit"]

    async def read_until(self, wanted: bytes | str, timeout: float = 30.0) -> bytes:
        """Everything up to the first piece in which `wanted` has appeared."""
        mark, seen = wanted.encode() if isinstance(wanted, str) else wanted, b""
        while mark not in seen:
            piece = await self.receive(timeout)
            if piece is None:
                raise Lost(f"the terminal ended before {mark!r} appeared; it showed {seen[-200:]!r}")
            seen += piece
        return seen

    async def send(self, data: bytes | str) -> None:
        """Type something."""
        await self._write(data.encode() if isinstance(data, str) else bytes(data))

    async def resize(self, rows: int, cols: int) -> None:
        await self._write(json.dumps({"resize": {"rows": rows, "cols": cols}}))

    async def wait(self) -> int:
        """Until what runs in it has ended; its exit code."""
        async for _ in self:
            pass
        assert self.exit_code is not None
        return self.exit_code

    async def interact(self) -> int | None:
        """Show it in this program's own terminal until it ends, or Ctrl-] lets go of it; the exit code, or None."""
        return await interact(self)

    async def _write(self, message: str | bytes) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as problem:
            raise Lost(f"the connection to the terminal is closed: {problem}") from problem

    async def aclose(self) -> None:
        await self._socket.close()
