"""A sandbox's network: what it may reach outside, and which of its ports can be reached."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from belljar.sdk._async.connection import AsyncConnection
from belljar.sdk._async.forwarding import forwarding
from belljar.sdk.requests import check_port, route, texts
from belljar.sdk.values import items_of

if TYPE_CHECKING:
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
        """Change the policy at once; what is not named stays, but `allow` alone means mode `allow-list`. What it forbids is cut."""
        wish = {"mode": mode, "allow": texts("allow", allow), "deny": texts("deny", deny), "limits": limits}
        body = {name: value for name, value in wish.items() if value is not None}
        return await self._transport.object("PATCH", self._path, body)

    async def set_secret(self, host: str, header: str, value: str) -> None:
        """HTTPS requests to `host` (or `host:port`) get this header on their way out; the sandbox never sees its value."""
        await self._transport.json("PUT", f"{self._path}/secrets", {"host": host, "header": header, "value": value})

    async def remove_secret(self, host: str, header: str) -> None:
        await self._transport.json("DELETE", f"{self._path}/secrets", params={"host": host, "header": header})


class AsyncPorts:
    """Ports that programs in the sandbox listen on."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._transport = client.transport
        self._sandbox_id = sandbox_id

    async def list(self) -> builtins.list[dict[str, Any]]:
        """What listens, and what was exposed: port, label, listening, process, public, url and proxy_url of each. Wakes nothing."""
        return items_of(await self._transport.json("GET", self._route()))

    async def expose(self, port: int, *, public: bool = False, label: str | None = None) -> dict[str, Any]:
        """Name a port; with `public` everyone may look at it, else only who has a key or a signed link."""
        body: dict[str, Any] = {"port": check_port(port), "public": public}
        body |= {"label": label} if label is not None else {}
        return await self._transport.object("POST", self._route(), body)

    async def hide(self, port: int) -> None:
        """Private again; links to it end."""
        await self._transport.json("DELETE", self._route(str(check_port(port))))

    async def connect(self, port: int) -> AsyncConnection:
        """A TCP connection to a port of the sandbox, which is woken for it. PortClosed if nothing listens there."""
        return AsyncConnection(await self._transport.websocket(self._route(str(check_port(port)), "connect"), {}))

    @asynccontextmanager
    async def forward(self, port: int, local_port: int = 0) -> AsyncIterator[int]:
        """Lead a port of this machine (127.0.0.1; 0 picks one) to a port of the sandbox; gives the local one."""
        path = self._route(str(check_port(port)), "connect")
        await self.list()  # what is wrong with the sandbox is told now, not to the first who connects
        async with forwarding(self._transport, path, check_port(local_port, low=0)) as listening:
            yield listening

    def _route(self, *more: str) -> str:
        return route("sandboxes", self._sandbox_id, "ports", *more)
