"""A client of one server: its sandboxes, templates, snapshots, tokens and events."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Self

from belljar.sdk._async.events import event_log
from belljar.sdk._async.sandboxes import AsyncSandboxAPI
from belljar.sdk._async.snapshots import AsyncSnapshotsAPI
from belljar.sdk._async.streaming import AsyncStream
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk.environment import find_place
from belljar.sdk.requests import DEFAULT_TIMEOUT_S, check_seconds, route
from belljar.sdk.retrying import CreateRetryEvent, retry_budget
from belljar.sdk.unserved import Missing, refuse_builds
from belljar.sdk.values import SandboxEvent, Template, Token, items_of


class AsyncClient:
    """A server and the key for it.

    `timeout` is how long the server may be silent; calls that run something wait for as long as that may run. `preview_host` is
    what preview addresses end with, if it is not the server's own name.
    """

    api_url: str
    api_base: str
    api_key: str | None
    timeout: float
    max_create_retry_seconds: float
    transport: AsyncTransport
    sandboxes: AsyncSandboxAPI
    templates: AsyncTemplatesAPI
    snapshots: AsyncSnapshotsAPI
    tokens: AsyncTokensAPI
    volumes: Missing
    apps: Missing
    databases: Missing
    functions: Missing
    schedules: Missing

    def __init__(
        self,
        api_url: str | None = None,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        api_base: str | None = None,
        max_create_retry_seconds: float | None = None,
        on_create_retry: Callable[[CreateRetryEvent], object] | None = None,
        *,
        preview_host: str | None = None,
    ) -> None:
        place = find_place(api_url if api_url is not None else api_base, api_key)
        self.api_url = self.api_base = place.url
        self.api_key = place.key
        self.timeout = check_seconds("timeout", timeout)
        self.max_create_retry_seconds = retry_budget(max_create_retry_seconds)
        self.on_create_retry = on_create_retry
        self.preview_host = preview_host
        self.transport = AsyncTransport(place, self.timeout, self.max_create_retry_seconds, on_create_retry)
        self.sandboxes = AsyncSandboxAPI(self)
        self.templates = AsyncTemplatesAPI(self)
        self.snapshots = AsyncSnapshotsAPI(self)
        self.tokens = AsyncTokensAPI(self)
        self.volumes, self.apps, self.databases = Missing("volumes"), Missing("apps"), Missing("databases")
        self.functions, self.schedules = Missing("functions"), Missing("schedules")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.api_url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes what it was made from; connections stay here."""
        made_from = (self.api_url, self.api_key or "", self.timeout, None, self.max_create_retry_seconds, self.on_create_retry)
        return partial(type(self), preview_host=self.preview_host), made_from

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of the connections. Sandboxes live on."""
        await self.transport.aclose()

    async def me(self) -> dict[str, Any]:
        """Who the server takes us for: workspace, label, and whether as an admin."""
        return await self.transport.object("GET", "/me")

    async def version(self) -> dict[str, Any]:
        return await self.transport.object("GET", "/version")

    def events(self, *, follow: bool = False, tail: int | None = None, after: int = 0) -> AsyncStream[SandboxEvent]:
        """What happened to the workspace's sandboxes, the last 100 or `tail`; with `follow`, also what is still to happen."""
        return AsyncStream(event_log(self.transport, "/events", follow, tail, after))


class AsyncTemplatesAPI:
    """What sandboxes can be created from."""

    def __init__(self, client: AsyncClient) -> None:
        self._transport = client.transport

    async def list(self) -> builtins.list[Template]:
        found = await self._transport.json("GET", "/templates")
        return [Template.from_dict(item) for item in items_of(found)]

    async def get(self, name: str) -> Template:
        return Template.from_dict(await self._transport.object("GET", route("templates", name)))

    async def delete(self, name: str) -> None:
        await self._transport.json("DELETE", route("templates", name))

    async def builds(self) -> builtins.list[dict[str, Any]]:
        """Builds that were asked for over HTTP: none, on a server that builds on its host only."""
        return items_of(await self._transport.json("GET", "/templates/builds"))

    def __getattr__(self, call: str) -> NoReturn:
        refuse_builds(call)


class AsyncTokensAPI:
    """Keys of the workspace; an admin also makes them for others."""

    def __init__(self, client: AsyncClient) -> None:
        self._transport = client.transport

    async def list(self) -> builtins.list[Token]:
        return [Token.from_dict(item) for item in (await self._transport.object("GET", "/me/tokens")).get("items") or []]

    async def create(
        self, name: str, expires_in_days: int | None = None, *, workspace: str | None = None, admin: bool = False
    ) -> Token:
        """`token` of the answer is shown only this once."""
        body: dict[str, Any] = {"label": name}
        body |= {"expires_in_days": expires_in_days} if expires_in_days is not None else {}
        body |= {"workspace": workspace} if workspace is not None else {}
        body |= {"admin": True} if admin else {}
        return Token.from_dict(await self._transport.object("POST", "/me/tokens", body))

    async def revoke(self, prefix: str) -> None:
        await self._transport.json("DELETE", route("me", "tokens", prefix))


_default: AsyncClient | None = None


def get_default_client() -> AsyncClient:
    """The client of calls that name none; made from the environment when it is first needed."""
    global _default
    if _default is None:
        _default = AsyncClient()
    return _default


def set_default_client(client: AsyncClient | None) -> None:
    global _default
    _default = client
