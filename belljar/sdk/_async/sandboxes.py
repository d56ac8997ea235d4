"""The sandboxes of a workspace: create, find, fork, end."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.sdk._async.adaptors import CancelEvent, Flow
from belljar.sdk._async.paging import pages
from belljar.sdk.errors import InvalidArgument, Lost
from belljar.sdk.requests import MACHINE_S, route, texts
from belljar.sdk.values import items_of

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient
    from belljar.sdk._async.sandbox import AsyncSandbox

DEFAULT_TEMPLATE = "code-interpreter"


class AsyncSandboxAPI:
    """All sandboxes that this key may see."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        template: str = DEFAULT_TEMPLATE,
        cpu: int | None = None,
        memory_mb: int | None = None,
        ttl_seconds: float | None = None,
        persistent: bool = False,
        metadata: Mapping[str, str] | None = None,
        from_snapshot: str | None = None,
        volumes: Sequence[Mapping[str, Any]] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        disk_mb: int | None = None,
        egress_allowlist: Sequence[str] | None = None,
        egress: str | Mapping[str, Any] | None = None,
        egress_secrets: Sequence[Mapping[str, str]] | None = None,
        cancel: CancelEvent | None = None,
    ) -> AsyncSandbox:
        """A new sandbox, which has answered when this returns.

        A create that does not fit now is tried again for `max_create_retry_seconds`; setting `cancel` ends that. CPU and memory
        are the template's: `cpu` and `memory_mb` are taken for compatibility only.
        """
        if cpu is not None or memory_mb is not None:
            warnings.warn("cpu and memory_mb are ignored: they are part of the template", DeprecationWarning, stacklevel=2)
        body = _wish(
            template=template,
            ttl_seconds=ttl_seconds,
            persistent=persistent or None,
            metadata=dict(metadata) if metadata else None,
            from_snapshot=str(from_snapshot) if from_snapshot is not None else None,
            volumes=[dict(volume) for volume in volumes] if volumes else None,
            env=dict(env) if env else None,
            disk_mb=disk_mb,
            egress_allowlist=texts("egress_allowlist", egress_allowlist),
            egress=dict(egress) if isinstance(egress, Mapping) else egress,
            egress_secrets=[dict(secret) for secret in egress_secrets] if egress_secrets else None,
        )
        data = await self._client.transport.create("/sandboxes", body, timeout=self._patience(), cancel=cancel)
        return self._handle(data, persistent)

    async def list(self, *, metadata: Mapping[str, str] | None = None, status: str | None = None) -> builtins.list[AsyncSandbox]:
        """Oldest first; those whose metadata has all of `metadata`, and whose status is `status`."""
        found = await self._client.transport.json("GET", "/sandboxes", params=_filters(metadata, status))
        return [self._handle(item) for item in items_of(found)]

    async def iterate(
        self, *, metadata: Mapping[str, str] | None = None, status: str | None = None, page_size: int = 100
    ) -> Flow[AsyncSandbox]:
        """The same, one page after the other."""
        async for page in pages(self._client.transport, "/sandboxes", _filters(metadata, status), page_size):
            for item in items_of(page):
                yield self._handle(item)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        return self._handle(await self._client.transport.object("GET", route("sandboxes", sandbox_id)))

    async def delete(self, sandbox_id: str) -> None:
        """End it; safe to repeat."""
        await self._client.transport.json("DELETE", route("sandboxes", sandbox_id), timeout=self._patience())

    async def fork(
        self, sandbox_id: str, metadata: Mapping[str, str] | None = None, *, cancel: CancelEvent | None = None
    ) -> AsyncSandbox:
        """A child with the same memory, files and running programs."""
        body = {"metadata": dict(metadata)} if metadata is not None else {}
        path = route("sandboxes", sandbox_id, "fork")
        data = await self._client.transport.create(path, body, timeout=self._patience(), cancel=cancel)
        return self._handle(_child(data.get("sandbox"), sandbox_id))

    async def fork_tree(
        self, sandbox_id: str, count: int, metadata: Mapping[str, str] | None = None, *, cancel: CancelEvent | None = None
    ) -> builtins.list[AsyncSandbox]:
        """`count` children of the same instant, which know that they belong together."""
        body = _wish(count=count, metadata=dict(metadata) if metadata is not None else None)
        path = route("sandboxes", sandbox_id, "fork-tree")
        data = await self._client.transport.create(path, body, timeout=self._patience(), cancel=cancel)
        return [self._handle(_child(item, sandbox_id)) for item in data.get("children") or []]

    async def promote(self, sandbox_id: str, *, cleanup_siblings: bool = False, tree_id: str | None = None) -> dict[str, Any]:
        """Make a child of a tree independent; with `cleanup_siblings` the others end. {winner, tree_id, deleted, failures}."""
        body = _wish(cleanup_siblings=cleanup_siblings, tree_id=tree_id)
        path = route("sandboxes", sandbox_id, "promote")
        return await self._client.transport.object("POST", path, body, timeout=self._patience())

    def _patience(self) -> float:
        return max(self._client.timeout, MACHINE_S)

    def _handle(self, data: Any, persistent: bool = False) -> AsyncSandbox:
        from belljar.sdk._async.sandbox import AsyncSandbox

        if not isinstance(data, dict) or not data.get("id"):
            raise Lost(f"the server's answer names no sandbox; is there a Belljar server at {self._client.api_url}?")
        return AsyncSandbox.from_dict(data, client=self._client, persistent=persistent)


def _wish(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _filters(metadata: Mapping[str, str] | None, status: str | None) -> dict[str, Any]:
    labels = {f"metadata.{name}": value for name, value in (metadata or {}).items()}
    if not all(isinstance(value, str) for value in labels.values()):
        raise InvalidArgument("metadata must map text to text")
    return {**labels, "status": status}


def _child(data: Any, parent_id: str) -> dict[str, Any]:
    child = dict(data) if isinstance(data, dict) else {}
    child["metadata"] = {"fork_parent_id": parent_id, **(child.get("metadata") or {})}
    return child
