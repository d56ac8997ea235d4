"""Sandboxes: create, look, end, pause, and how long they live."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import Fields, read_fields
from belljar.server.auth import workspace_of
from belljar.server.patience import patiently
from belljar.service.values import SandboxRecord

DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 300, 3600


def render_sandbox(record: SandboxRecord) -> dict[str, Any]:
    return {
        "sandboxID": record.id,
        "templateID": record.template,
        "clientID": "SandBase",
        "status": record.state,
        "startedAt": timestamp(record.created_at),
        "endAt": timestamp(record.expires_at),
        "metadata": dict(record.metadata),
    }


def _timeout(fields: Fields) -> int:
    return fields.whole("timeout", 1, MAX_TIMEOUT_S, DEFAULT_TIMEOUT_S)


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    work = workspace_of(request).create(
        fields.text("templateID"), ttl_s=_timeout(fields), metadata=fields.labels("metadata"), env=fields.labels("envVars")
    )
    return answer(render_sandbox(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    wanted = request.query_params.get("status")
    return answer([render_sandbox(record) for record in await workspace_of(request).list() if wanted in (None, "", record.state)])


async def get(request: Request) -> Response:
    return answer(render_sandbox(await workspace_of(request).get(request.path_params["id"])))


async def delete(request: Request) -> Response:
    await workspace_of(request).kill(request.path_params["id"])
    return nothing()


async def pause(request: Request) -> Response:
    await workspace_of(request).pause(request.path_params["id"])
    return nothing()


async def connect(request: Request) -> Response:
    """Back to work, paused or asleep, and so long to live from now on."""
    timeout_s = _timeout(await read_fields(request))
    workspace, sandbox_id = workspace_of(request), request.path_params["id"]
    await workspace.wake(sandbox_id)
    await workspace.resume(sandbox_id)
    await workspace.set_ttl(sandbox_id, timeout_s)
    return answer(render_sandbox(await workspace.get(sandbox_id)))


async def set_timeout(request: Request) -> Response:
    fields = await read_fields(request)
    await workspace_of(request).set_ttl(request.path_params["id"], fields.whole("timeout", 1, MAX_TIMEOUT_S))
    return nothing()


ROUTES = [
    Route("/sandboxes", create, methods=["POST"]),
    Route("/sandboxes", list_all),
    Route("/sandboxes/{id}", get),
    Route("/sandboxes/{id}", delete, methods=["DELETE"]),
    Route("/sandboxes/{id}/pause", pause, methods=["POST"]),
    Route("/sandboxes/{id}/connect", connect, methods=["POST"]),
    Route("/sandboxes/{id}/timeout", set_timeout, methods=["POST"]),
]
