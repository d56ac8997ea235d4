"""Files. Contents stream in both directions and are never held here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import Streamed, answer, nothing
from belljar.server.asking import body_of, query_flag, query_text
from belljar.server.auth import workspace_of
from belljar.service.files import open_file, stat_target
from belljar.service.values import FileEntry

LETTERS = {"file": "f", "dir": "d", "symlink": "l", "other": "o"}


def render_entry(entry: FileEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "path": entry.path,
        "is_dir": entry.type == "dir",
        "size": entry.size,
        "mode": LETTERS[entry.type],
        "permissions": f"{entry.mode & 0o7777:04o}",
        "mtime": entry.mtime_ns // 10**9,
        "owner": entry.owner,
    }


async def read(request: Request) -> Response:
    pieces = await open_file(workspace_of(request), request.path_params["id"], query_text(request, "path"))
    return Streamed(pieces, "application/octet-stream")


async def write(request: Request) -> Response:
    path = query_text(request, "path")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        written = await sandbox.files.write(path, body_of(request))
    return answer({"path": path, "bytes": written})


async def remove(request: Request) -> Response:
    path, recursive = query_text(request, "path"), query_flag(request, "recursive")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await sandbox.files.remove(path, recursive=recursive)
    return nothing()


async def list_folder(request: Request) -> Response:
    path = query_text(request, "path")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        entries = await sandbox.files.list(path)
    return answer({"path": path, "entries": [render_entry(entry) for entry in sorted(entries, key=lambda entry: entry.name)]})


async def stat(request: Request) -> Response:
    path = query_text(request, "path")
    return answer(render_entry(await stat_target(workspace_of(request), request.path_params["id"], path)))


ROUTES = [
    Route("/sandboxes/{id}/fs", read),
    Route("/sandboxes/{id}/fs", write, methods=["PUT"]),
    Route("/sandboxes/{id}/fs", remove, methods=["DELETE"]),
    Route("/sandboxes/{id}/fs/dir", list_folder),
    Route("/sandboxes/{id}/fs/stat", stat),
]
