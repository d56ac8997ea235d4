"""When a sandbox ends or sleeps by itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import InvalidInput
from belljar.server.answers import answer, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of


async def show(request: Request) -> Response:
    life = await workspace_of(request).lifecycle(request.path_params["id"])
    return answer(
        {
            "ttl_seconds": int(life.ttl_s or 0),
            "persistent": life.persistent,
            "idle_seconds": int(life.idle_s),
            "expires_at": timestamp(life.expires_at),
            "idle_timeout_seconds": life.idle_timeout_s,
            "hibernates_in_seconds": life.hibernates_in_s,
            "calls_in_flight": life.in_flight,
            "status": life.state,
            "reason": life.reason,
        }
    )


async def change(request: Request) -> Response:
    fields = await read_fields(request)
    workspace, sandbox_id = workspace_of(request), request.path_params["id"]
    if "ttl_seconds" not in fields and "persistent" not in fields:
        raise InvalidInput("ttl_seconds or persistent required")
    ttl_s = fields.number("ttl_seconds", 0)
    persistent = fields.flag("persistent")
    if "ttl_seconds" in fields:
        await workspace.set_ttl(sandbox_id, ttl_s or None)
    if "persistent" in fields:
        await workspace.set_persistent(sandbox_id, persistent)
    return await show(request)


ROUTES = [
    Route("/sandboxes/{id}/lifecycle", show),
    Route("/sandboxes/{id}/lifecycle", change, methods=["PATCH"]),
]
