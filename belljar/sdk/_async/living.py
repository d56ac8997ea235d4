"""What can be done to a sandbox as a whole: pause, sleep, save, fork, end; and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, overload

from belljar.sdk._async.adaptors import CancelEvent, Flow
from belljar.sdk._async.events import event_log
from belljar.sdk._async.streaming import AsyncStream
from belljar.sdk.previews import preview_url
from belljar.sdk.requests import MACHINE_S, check_port, route, texts
from belljar.sdk.values import SandboxEvent, Snapshot, items_of

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient
    from belljar.sdk._async.sandbox import AsyncSandbox
    from belljar.sdk.exploring import Candidate, ExploreResult


class AsyncLiving:
    """The calls about the whole machine. Those that need the guest wake a sleeping one; these do not."""

    id: str
    persistent: bool
    _client: AsyncClient

    async def kill(self) -> None:
        """End it, and remove everything of it; safe to repeat."""
        if self.id:
            await self._client.sandboxes.delete(self.id)

    async def close(self) -> None:
        """The same as `kill`."""
        await self.kill()

    async def pause(self) -> None:
        """Stop it between two instructions; memory stays."""
        await self._post("pause")

    async def resume(self) -> None:
        await self._post("resume")

    async def hibernate(self) -> None:
        """Save memory and disk, and end the machine. The next call that needs it wakes it."""
        await self._post("hibernate")

    async def wake(self) -> None:
        await self._post("wake")

    async def snapshot(self, metadata: Mapping[str, str] | None = None) -> Snapshot:
        """Save memory and disk of one instant; the sandbox runs on. The answer is the snapshot's id, with more attributes."""
        return Snapshot.from_dict(await self._post("snapshots", {"metadata": dict(metadata)} if metadata else None))

    @overload
    async def fork(self, metadata: Mapping[str, str] | None = None, *, cancel: CancelEvent | None = None) -> AsyncSandbox: ...

    @overload
    async def fork(self, metadata: int, *, cancel: CancelEvent | None = None) -> list[AsyncSandbox]: ...

    async def fork(
        self, metadata: Mapping[str, str] | int | None = None, *, cancel: CancelEvent | None = None
    ) -> AsyncSandbox | list[AsyncSandbox]:
        """A child with the same memory, files and running programs; `fork(3)` makes three of the same instant."""
        if isinstance(metadata, int):
            return await self.fork_tree(metadata, cancel=cancel)
        return await self._client.sandboxes.fork(self.id, metadata=metadata, cancel=cancel)

    async def fork_tree(
        self, count: int, metadata: Mapping[str, str] | None = None, *, cancel: CancelEvent | None = None
    ) -> list[AsyncSandbox]:
        """`count` children of the same instant; all or none."""
        return await self._client.sandboxes.fork_tree(self.id, count, metadata=metadata, cancel=cancel)

    async def promote(self, *, cleanup_siblings: bool = False, tree_id: str | None = None) -> dict[str, Any]:
        """Make this child of a tree independent."""
        return await self._client.sandboxes.promote(self.id, cleanup_siblings=cleanup_siblings, tree_id=tree_id)

    async def explore(self, candidates: Sequence[Candidate | str], **options: Any) -> ExploreResult:
        """Try each candidate in a fork of its own, and keep the best; see `explore` for the options."""
        from belljar.sdk._async.explore import explore

        return await explore(self, candidates, **options)  # type: ignore[arg-type]  # only sandboxes are Living

    async def lifecycle(self) -> dict[str, Any]:
        """When it ends or sleeps by itself, and why."""
        return await self._client.transport.object("GET", route("sandboxes", self.id, "lifecycle"))

    async def set_ttl(self, seconds: float) -> dict[str, Any]:
        """End it that many seconds from now; 0: never."""
        return await self._change({"ttl_seconds": seconds})

    async def set_persistent(self, persistent: bool) -> dict[str, Any]:
        """A persistent sandbox is put to sleep when nobody uses it, and outlives its `with` block."""
        changed = await self._change({"persistent": persistent})
        self.persistent = persistent
        return changed

    async def stats(self) -> dict[str, Any]:
        """What the guest sees, and what it costs the host."""
        return await self._client.transport.object("GET", route("sandboxes", self.id, "stats"))

    def events(self, *, follow: bool = False, tail: int | None = None, after: int = 0) -> AsyncStream[SandboxEvent]:
        """What happened to it, the last 100 or `tail`; with `follow`, also what is still to happen, until it is deleted."""
        path = route("sandboxes", self.id, "events")
        return AsyncStream(event_log(self._client.transport, path, follow, tail, after, last="sandbox.deleted"))

    def logs(self, stream: str = "both", follow: bool = False) -> AsyncStream[str]:
        """Lines that its commands wrote; with `follow`, also those that are still to come."""
        return AsyncStream(self._lines(stream, follow))

    async def _lines(self, stream: str, follow: bool) -> Flow[str]:
        path, params = route("sandboxes", self.id, "logs"), {"stream": stream, "follow": "true" if follow else "false"}
        if not follow:
            response = await self._client.transport.send("GET", path, params=params)
            for line in response.text.splitlines():
                yield line
            return
        async with aclosing(self._client.transport.events("GET", path, params=params)) as events:
            async for event in events:
                yield str(event.data.get("line", event.data.get("chunk", event.data.get("text", "")))).rstrip("\n")

    def preview_url(self, port: int, scheme: str | None = None) -> str:
        """Where a port of the sandbox can be seen from outside, with a key, a link's cookie, or if it is public."""
        return preview_url(self._client.api_url, self._client.preview_host, self.id, port, scheme)

    async def preview_urls(self) -> dict[int, str]:
        """The same for every port that something listens on, or that was exposed."""
        found = items_of(await self._client.transport.json("GET", route("sandboxes", self.id, "ports")))
        return {item["port"]: self.preview_url(item["port"]) for item in found}

    async def signed_preview_url(self, port: int, ttl_seconds: int = 3600, paths: Sequence[str] | None = None) -> str:
        """An address that works without a key until `ttl_seconds` have passed; with `paths`, for those and what is below them."""
        body: dict[str, Any] = {"port": check_port(port), "ttl_seconds": ttl_seconds}
        body |= {"paths": texts("paths", paths)} if paths is not None else {}
        return str((await self._post("preview-token", body))["url"])

    async def _post(self, action: str, body: Mapping[str, Any] | None = None) -> Any:
        timeout = max(self._client.timeout, MACHINE_S)
        return await self._client.transport.json("POST", route("sandboxes", self.id, action), body, timeout=timeout)

    async def _change(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._client.transport.object("PATCH", route("sandboxes", self.id, "lifecycle"), body)
