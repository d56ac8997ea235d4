"""Ports that a sandbox listens on and the outside can reach: none, because guests have no network."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import answer
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_SANDBOX
from belljar.server.shapes import listing, whole

PORTS = listing(whole(low=1, high=65535))


async def list_all(request: Request) -> Response:
    await workspace_of(request).get(request.path_params["id"])
    return answer([])


ROUTES = [call("GET", "/sandboxes/{id}/ports", list_all, "Ports that the outside can reach", gives=PORTS, errors=OF_A_SANDBOX)]
