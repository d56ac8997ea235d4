"""Files. Contents stream in both directions and are never held here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import Streamed, answer, nothing
from belljar.server.asking import body_of, query_flag, query_of, query_text, query_whole
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_FILE, raw
from belljar.server.shapes import answered, choice, flag, guest_text, listing, maybe, record, switch, text, whole
from belljar.service.files import open_file, stat_target
from belljar.service.values import FileEntry

MAX_DEPTH = 1000
LETTERS = {"file": "f", "dir": "d", "symlink": "l", "other": "o"}
WRITING = "Folders on the way are made, and a file that is there is replaced."

PATH = guest_text("A path in the guest; relative ones begin at the user's home.", examples=["/tmp/x"])
USER = {"user": guest_text("With whose rights; the template's user by default.", most=256)}
AT_PATH = record({"path": PATH}, USER)
READ = record({"path": PATH}, {"offset": whole("The first byte."), "length": whole("So many at most."), **USER})
MODE = text("The file's permissions, as in `chmod`.", pattern="^0?[0-7]{1,4}$", examples=["0644"])
WRITE = record({"path": PATH}, {"mode": MODE, "append": switch("To what is there."), **USER})
REMOVE = record({"path": PATH}, {"recursive": switch("A folder with all that is in it."), **USER})
LIST = record({"path": PATH}, {"depth": whole("1 is the folder itself.", 1, MAX_DEPTH), **USER})
CONTENT = raw("The bytes of the file, of any length.")
WRITTEN = answered({"path": guest_text(), "bytes": whole()})
ENTRY = answered(
    {
        "name": guest_text(empty=True),
        "path": guest_text(),
        "is_dir": flag(),
        "size": whole(),
        "mode": choice(list(LETTERS.values()), "File, folder, link or something else."),
        "permissions": guest_text("As in `chmod`.", examples=["0644"]),
        "mtime": whole("Seconds since 1970.", low=-(2**53)),
        "owner": maybe(guest_text()),
    },
    name="FileEntry",
)
FOLDER = answered({"path": guest_text(), "entries": listing(ENTRY)})


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


def user_of(request: Request) -> str | None:
    return query_of(request).get("user") or None


async def read(request: Request) -> Response:
    pieces = await open_file(
        workspace_of(request),
        request.path_params["id"],
        query_text(request, "path"),
        offset=query_whole(request, "offset", 0),
        length=query_whole(request, "length", 0) if query_of(request).get("length") else None,
        user=user_of(request),
    )
    return Streamed(pieces, "application/octet-stream")


async def write(request: Request) -> Response:
    path, append, mode = query_text(request, "path"), query_flag(request, "append"), query_of(request).get("mode")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        written = await sandbox.files.write(
            path, body_of(request), mode=int(mode, 8) if mode else None, append=append, user=user_of(request)
        )
    return answer({"path": path, "bytes": written})


async def remove(request: Request) -> Response:
    path, recursive = query_text(request, "path"), query_flag(request, "recursive")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await sandbox.files.remove(path, recursive=recursive, user=user_of(request))
    return nothing()


async def list_folder(request: Request) -> Response:
    path, depth = query_text(request, "path"), query_whole(request, "depth", 1)
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        entries = await sandbox.files.list(path, depth=depth, user=user_of(request))
    return answer({"path": path, "entries": [render_entry(entry) for entry in sorted(entries, key=lambda entry: entry.path)]})


async def stat(request: Request) -> Response:
    path = query_text(request, "path")
    entry = await stat_target(workspace_of(request), request.path_params["id"], path, user=user_of(request))
    return answer(render_entry(entry))


ROUTES = [
    call("GET", "/sandboxes/{id}/fs", read, "Read a file", query=READ, gives=raw("The bytes of the file."), errors=OF_A_FILE),
    call(
        "PUT",
        "/sandboxes/{id}/fs",
        write,
        "Write a file",
        about=WRITING,
        query=WRITE,
        body=CONTENT,
        gives=WRITTEN,
        errors=OF_A_FILE,
    ),
    call("DELETE", "/sandboxes/{id}/fs", remove, "Remove a file or folder", query=REMOVE, errors=OF_A_FILE),
    call("GET", "/sandboxes/{id}/fs/dir", list_folder, "List a folder", query=LIST, gives=FOLDER, errors=OF_A_FILE),
    call(
        "GET",
        "/sandboxes/{id}/fs/stat",
        stat,
        "Look at a file",
        about="Links are followed.",
        query=AT_PATH,
        gives=ENTRY,
        errors=OF_A_FILE,
    ),
]
