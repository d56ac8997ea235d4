"""Ports that a sandbox listens on and the outside can reach: none, because guests have no network."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer
from belljar.server.auth import workspace_of


async def list_all(request: Request) -> Response:
    await workspace_of(request).get(request.path_params["id"])
    return answer([])


ROUTES = [Route("/sandboxes/{id}/ports", list_all)]
