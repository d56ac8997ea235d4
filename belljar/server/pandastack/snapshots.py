"""Snapshots: taken of a sandbox, and kept beyond it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.patience import patiently
from belljar.service.values import SnapshotRecord


def render_snapshot(record: SnapshotRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "sandbox_id": record.sandbox_id,
        "template": record.template,
        "size_bytes": record.size_bytes,
        "created_at": timestamp(record.created_at),
        "workspace": record.workspace,
        "metadata": dict(record.metadata),
    }


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    work = workspace_of(request).snapshot(request.path_params["id"], fields.labels("metadata"))
    return answer(render_snapshot(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    """Newest first."""
    wanted = request.query_params.get("sandbox_id")
    found = [record for record in await workspace_of(request).snapshots() if wanted in (None, "", record.sandbox_id)]
    return answer({"snapshots": [render_snapshot(record) for record in reversed(found)]})


async def get(request: Request) -> Response:
    return answer(render_snapshot(await workspace_of(request).get_snapshot(request.path_params["id"])))


async def delete(request: Request) -> Response:
    await workspace_of(request).remove_snapshot(request.path_params["id"])
    return nothing()


ROUTES = [
    Route("/sandboxes/{id}/snapshots", create, methods=["POST"]),
    Route("/snapshots", list_all),
    Route("/snapshots/{id}", get),
    Route("/snapshots/{id}", delete, methods=["DELETE"]),
]
