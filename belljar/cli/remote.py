"""Connections to ports of a sandbox that a server holds: bytes over a WebSocket, as `belljar.server.previews.rawtcp` speaks it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, InvalidStatus

from belljar.errors import BelljarError, HostError, InvalidInput, SandboxError, from_code

if TYPE_CHECKING:
    from belljar.cli.forwarding import Dial, Stream

EOF = '{"eof":true}'
TIMEOUT_S = 60.0
# As long as the server's own: its answers wait behind data that nobody here has read yet.
PING_TIMEOUT_S = 120.0


@asynccontextmanager
async def through_server(url: str, sandbox: str) -> AsyncIterator[Dial]:
    """Checks that the server, the token and the sandbox are there, and yields what makes connections."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InvalidInput(f"--server {url!r} is not an address such as http://127.0.0.1:8080")
    token = os.environ.get("BELLJAR_API_KEY")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    base = f"{url.rstrip('/').removesuffix('/v1')}/v1/sandboxes/{quote(sandbox, safe='')}"
    await _check(base, headers)

    @asynccontextmanager
    async def dial(port: int) -> AsyncIterator[Stream]:
        address = f"ws{base.removeprefix('http')}/ports/{port}/connect"
        try:
            opened = await connect(
                address, additional_headers=headers, compression=None, open_timeout=TIMEOUT_S, ping_timeout=PING_TIMEOUT_S
            )
        except InvalidStatus as refusal:
            raise _told(refusal.response.status_code, refusal.response.body or b"") from None
        except (InvalidHandshake, OSError, TimeoutError) as problem:
            raise HostError(f"the server could not be reached: {problem}") from problem
        async with opened:
            yield RemoteStream(opened)

    yield dial


class RemoteStream:
    """One connection through a server."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def read(self) -> bytes:
        """Some bytes; none at the end."""
        try:
            while not (data := await self._socket.recv()):
                pass
        except ConnectionClosedOK:
            return b""
        except ConnectionClosed as problem:
            raise SandboxError(f"the connection broke: {problem}") from None
        return data if isinstance(data, bytes) else b""  # the only text there is says that this direction has ended

    async def write(self, data: bytes) -> None:
        await self._send(data)

    async def write_eof(self) -> None:
        await self._send(EOF)

    async def _send(self, message: bytes | str) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as problem:
            raise SandboxError(f"the connection broke: {problem}") from None


async def _check(base: str, headers: dict[str, str]) -> None:
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            answer = await client.get(base, headers=headers)
    except httpx.HTTPError as problem:
        raise HostError(f"the server could not be reached: {problem}") from problem
    if answer.status_code != 200:
        raise _told(answer.status_code, answer.content)


def _told(status: int, body: bytes | bytearray) -> BelljarError:
    """The server's own error, as far as it is one."""
    try:
        told = json.loads(body)
        return from_code(str(told["code"]), str(told["error"]))
    except (ValueError, KeyError, TypeError):
        return SandboxError(f"the server answered {status}")
