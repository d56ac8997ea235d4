"""Logs of a sandbox: there are none yet. What a command writes goes to whoever ran it, and a guest's console is not kept."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import NotSupported
from belljar.server.auth import workspace_of


async def read(request: Request) -> Response:
    await workspace_of(request).get(request.path_params["id"])
    raise NotSupported("this server keeps no log of a sandbox's console; a command's output is in the answer of exec")


ROUTES = [Route("/sandboxes/{id}/logs", read)]
