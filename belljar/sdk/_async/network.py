"""A sandbox's network: what it may reach outside, and which of its ports can be reached."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed

from belljar.sdk._async.adaptors import WebSocket, receive
from belljar.sdk.errors import Lost
from belljar.sdk.requests import route

if TYPE_CHECKING:
    from typing import Self

    from belljar.sdk._async.client import AsyncClient


class AsyncEgress:
    """Connections that the sandbox makes."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._transport = client.transport
        self._path = route("sandboxes", sandbox_id, "egress")

    async def get(self) -> dict[str, Any]:
        """The policy (mode, allow, deny, limits), names of secrets, counters, and the last connections with their verdicts."""
        return await self._transport.object("GET", self._path)

    async def set(
        self,
        *,
        mode: str | None = None,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Change the policy of a running sandbox; what is not named stays. Connections that it forbids are cut."""
        wish: dict[str, Any] = {"mode": mode, "allow": allow, "deny": deny, "limits": limits}
        body = {name: list(value) if name in ("allow", "deny") else value for name, value in wish.items() if value is not None}
        return await self._transport.object("PATCH", self._path, body)

    async def set_secret(self, host: str, header: str, value: str) -> None:
        """Requests to `host` get this header on their way out; the sandbox never sees its value."""
        await self._transport.json("PUT", f"{self._path}/secrets", {"host": host, "header": header, "value": value})

    async def remove_secret(self, host: str, header: str) -> None:
        await self._transport.json("DELETE", f"{self._path}/secrets", params={"host": host, "header": header})


class AsyncPorts:
    """Ports that programs in the sandbox listen on."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._transport = client.transport
        self._sandbox_id = sandbox_id

    async def list(self) -> builtins.list[dict[str, Any]]:
        found = await self._transport.json("GET", self._route())
        ports = found.get("ports") if isinstance(found, dict) else found
        return [item if isinstance(item, dict) else {"port": item} for item in ports or []]

    async def expose(self, port: int, *, public: bool = False, label: str | None = None) -> dict[str, Any]:
        """Let a port be seen from outside; without `public`, with a key only."""
        body: dict[str, Any] = {"port": port, "public": public}
        body |= {"label": label} if label is not None else {}
        return await self._transport.object("POST", self._route(), body)

    async def hide(self, port: int) -> None:
        await self._transport.json("DELETE", self._route(str(port)))

    async def connect(self, port: int) -> AsyncConnection:
        """A TCP connection to a port of the sandbox."""
        return AsyncConnection(await self._transport.websocket(self._route(str(port), "connect"), {}))

    def _route(self, *more: str) -> str:
        return route("sandboxes", self._sandbox_id, "ports", *more)


class AsyncConnection:
    """Bytes to and from a port of the sandbox."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as problem:
            raise Lost(f"the connection is closed: {problem}") from problem

    async def receive(self, timeout: float | None = None) -> bytes:
        """The next bytes; empty at the end."""
        while True:
            try:
                message = await receive(self._socket, timeout)
            except ConnectionClosed:
                return b""
            if isinstance(message, bytes):
                return message

    async def aclose(self) -> None:
        await self._socket.close()
