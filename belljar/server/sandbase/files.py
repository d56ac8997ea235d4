"""Files, as raw bytes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import Streamed
from belljar.server.asking import query_text
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_FILE, raw
from belljar.server.shapes import guest_text, record
from belljar.service.files import open_file

AT_PATH = record({"path": guest_text("A path in the guest.", examples=["/tmp/x"])})


async def read(request: Request) -> Response:
    pieces = await open_file(workspace_of(request), request.path_params["id"], query_text(request, "path"))
    return Streamed(pieces, "application/octet-stream")


ROUTES = [
    call("GET", "/sandboxes/{id}/files", read, "Read a file", query=AT_PATH, gives=raw("The bytes of the file."), errors=OF_A_FILE)
]
