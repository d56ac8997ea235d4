"""What a sandbox uses: as its guest sees it, and what that costs the host."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import answer
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE
from belljar.server.shapes import answered

STATS = answered({"guest": {"type": "object"}, "host": {"type": "object"}}, name="Stats")


async def show(request: Request) -> Response:
    return answer(await workspace_of(request).stats(request.path_params["id"]))


ROUTES = [
    call(
        "GET",
        "/sandboxes/{id}/stats",
        show,
        "What a sandbox uses",
        about="Wakes nothing and does not count as use: one that is paused or asleep is a 409.",
        gives=STATS,
        errors=OF_A_MACHINE,
    )
]
