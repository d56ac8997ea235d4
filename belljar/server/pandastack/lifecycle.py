"""When a sandbox ends or sleeps by itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import InvalidInput
from belljar.server.answers import answer, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_SANDBOX
from belljar.server.pandastack.sandboxes import STATUS
from belljar.server.shapes import TIME, answered, flag, maybe, number, record, text, whole
from belljar.service import lifecycle

CHANGING = "One field or both must be given."
CHANGE = record({}, {"ttl_seconds": number("From now on; 0 is without end.", examples=[3600]), "persistent": flag()})
LIFE = answered(
    {
        "ttl_seconds": whole("0 is without end."),
        "persistent": flag(),
        "idle_seconds": whole("Since the last call that used it."),
        "expires_at": maybe(TIME),
        "idle_timeout_seconds": number("A persistent sandbox sleeps after so long without use."),
        "hibernates_in_seconds": maybe(number("Null while something keeps it awake, and if it never sleeps by itself.")),
        "hibernates_at": maybe(TIME),
        "calls_in_flight": whole(),
        "open_streams": whole(),
        "status": text(),
        "reason": text("What keeps it awake, why it sleeps, or what it died of."),
    },
    name="Lifecycle",
)


async def show(request: Request) -> Response:
    life = await lifecycle.show(workspace_of(request), request.path_params["id"])
    return answer(
        {
            "ttl_seconds": int(life.ttl_s or 0),
            "persistent": life.persistent,
            "idle_seconds": int(life.idle_s),
            "expires_at": timestamp(life.expires_at),
            "idle_timeout_seconds": life.idle_timeout_s,
            "hibernates_in_seconds": life.hibernates_in_s,
            "hibernates_at": timestamp(life.hibernates_at),
            "calls_in_flight": life.calls,
            "open_streams": life.streams,
            "status": STATUS.get(life.state, life.state),
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
    call("GET", "/sandboxes/{id}/lifecycle", show, "When it ends or sleeps by itself", gives=LIFE, errors=OF_A_SANDBOX),
    call("PATCH", "/sandboxes/{id}/lifecycle", change, "Change that", about=CHANGING, body=CHANGE, gives=LIFE, errors=OF_A_SANDBOX),
]
