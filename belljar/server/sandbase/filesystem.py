"""Files as the dialect's later pages have them: content as base64 in JSON, or raw and streamed by download and upload."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import AlreadyExists, InvalidInput
from belljar.server.answers import answer, nothing
from belljar.server.asking import query_flag, query_of, query_text, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.multipart import read_form
from belljar.server.operation import MAX_CODE_JSON_BYTES, MIB, OF_A_FILE, Media, plain, raw
from belljar.server.patience import patiently
from belljar.server.sandbase.files import AT_PATH, read
from belljar.server.shapes import answered, flag, guest_text, listing, record, switch, text, whole
from belljar.service.files import stat_target
from belljar.service.values import FileEntry

WORKDIR = "/workspace"
MAX_CONTENT_BYTES = 16 * MIB

PATH = guest_text("A path in the guest.", examples=["/tmp/x"])
LIST = record({}, {"path": guest_text(f"The folder; {WORKDIR} by default.")})
REMOVE = record({"path": PATH}, {"recursive": switch("A folder with all that is in it.")})
CONTENT = answered({"content": text("Base64.", empty=True)})
WRITE = record({"path": PATH, "content": text("Base64.", empty=True)})
UPLOAD = Media("multipart/form-data", {"type": "string", "format": "binary"}, "A field `path`, then the file as `file`.")
ENTRY = answered(
    {
        "name": guest_text(empty=True),
        "path": guest_text(),
        "isDir": flag(),
        "size": whole(),
        "mode": guest_text("As in `chmod`."),
        "modTime": whole("Seconds since 1970.", low=-(2**53)),
    },
    name="SandBaseFile",
)


def render_entry(entry: FileEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "path": entry.path,
        "isDir": entry.type == "dir",
        "size": entry.size,
        "mode": f"{entry.mode & 0o7777:04o}",
        "modTime": entry.mtime_ns // 10**9,
    }


async def read_content(request: Request) -> Response:
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        content = await sandbox.files.read(query_text(request, "path"), max_bytes=MAX_CONTENT_BYTES)
    return answer({"content": base64.b64encode(content).decode()})


async def write_content(request: Request) -> Response:
    fields = await read_fields(request)
    try:
        content = base64.b64decode(fields.text("content", ""), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("content is not base64") from None
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await sandbox.files.write(fields.text("path"), content)
    return Response(media_type="text/plain")


async def upload(request: Request) -> Response:
    fields, content = await read_form(request)
    path = fields.get("path") or query_of(request).get("path")
    if not path:
        raise InvalidInput("path required: as a field before the file, or in the query")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        written = await sandbox.files.write(path, content)
    return answer({"path": path, "size": written})


async def remove(request: Request) -> Response:
    path, recursive = query_text(request, "path"), query_flag(request, "recursive")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await sandbox.files.remove(path, recursive=recursive)
    return nothing()


async def list_folder(request: Request) -> Response:
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        entries = await sandbox.files.list(query_of(request).get("path") or WORKDIR)
    return answer([render_entry(entry) for entry in sorted(entries, key=lambda entry: entry.name)])


async def stat(request: Request) -> Response:
    return answer(render_entry(await stat_target(workspace_of(request), request.path_params["id"], query_text(request, "path"))))


async def mkdir(request: Request) -> Response:
    path = (await read_fields(request)).text("path")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await sandbox.files.mkdir(path)
    return answer({"path": path})


async def move(request: Request) -> Response:
    fields = await read_fields(request)
    source, target = fields.text("source"), fields.text("destination")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await patiently(request, sandbox.files.move(source, target))
    return answer({"path": target})


FS = "/sandboxes/{id}/filesystem"
MADE = answered({"path": guest_text()})
WRITTEN = answered({"path": guest_text(), "size": whole()})
FORM = record({}, {"path": guest_text("The same as the form's field.")})

ROUTES = [
    call("GET", FS, read_content, "Read a file of up to 16 MiB", query=AT_PATH, gives=CONTENT, errors=OF_A_FILE),
    call(
        "POST",
        FS,
        write_content,
        "Write a file",
        body=WRITE,
        max_body=MAX_CODE_JSON_BYTES,
        gives=plain("Nothing."),
        errors=OF_A_FILE,
    ),
    call("DELETE", FS, remove, "Remove a file or folder", query=REMOVE, errors=OF_A_FILE),
    call("GET", f"{FS}/download", read, "Read a file of any size", query=AT_PATH, gives=raw("Its bytes."), errors=OF_A_FILE),
    call("POST", f"{FS}/upload", upload, "Write a file of any size", query=FORM, body=UPLOAD, gives=WRITTEN, errors=OF_A_FILE),
    call("GET", f"{FS}/list", list_folder, "List a folder", query=LIST, gives=listing(ENTRY), errors=OF_A_FILE),
    call("GET", f"{FS}/stat", stat, "Look at a file", query=AT_PATH, gives=ENTRY, errors=OF_A_FILE),
    call("POST", f"{FS}/mkdir", mkdir, "Make a folder", body=record({"path": PATH}), gives=MADE, errors=OF_A_FILE),
    call(
        "POST",
        f"{FS}/move",
        move,
        "Move a file or folder",
        body=record({"source": PATH, "destination": PATH}),
        gives=MADE,
        errors=(*OF_A_FILE, AlreadyExists),
    ),
]
