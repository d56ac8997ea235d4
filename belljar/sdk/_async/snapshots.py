"""Snapshots: saved sandboxes to create new ones from."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from belljar.sdk._async.adaptors import Flow
from belljar.sdk._async.paging import pages
from belljar.sdk.requests import route

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient


class AsyncSnapshotsAPI:
    """The workspace's snapshots. `sandboxes.create(from_snapshot=…)` makes a sandbox of one."""

    def __init__(self, client: AsyncClient) -> None:
        self._transport = client.transport

    async def list(self, *, sandbox_id: str | None = None) -> builtins.list[dict[str, Any]]:
        """Newest first: id, sandbox_id, template, size_bytes, created_at, metadata."""
        found = await self._transport.object("GET", "/snapshots", params={"sandbox_id": sandbox_id})
        return [dict(item) for item in found.get("snapshots") or []]

    async def iterate(self, *, sandbox_id: str | None = None, page_size: int = 100) -> Flow[dict[str, Any]]:
        """The same, one page after the other, for workspaces that have many."""
        async for page in pages(self._transport, "/snapshots", {"sandbox_id": sandbox_id}, page_size):
            for item in page.get("snapshots") or []:
                yield dict(item)

    async def get(self, snapshot_id: str) -> dict[str, Any]:
        return await self._transport.object("GET", route("snapshots", snapshot_id))

    async def delete(self, snapshot_id: str) -> None:
        await self._transport.json("DELETE", route("snapshots", snapshot_id))
