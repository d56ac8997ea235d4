"""Files, as raw bytes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import Streamed
from belljar.server.asking import query_text
from belljar.server.auth import workspace_of
from belljar.service.files import open_file


async def read(request: Request) -> Response:
    pieces = await open_file(workspace_of(request), request.path_params["id"], query_text(request, "path"))
    return Streamed(pieces, "application/octet-stream")


ROUTES = [Route("/sandboxes/{id}/files", read)]
