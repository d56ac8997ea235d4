"""Files, beyond reading and writing them: folders made, things moved and copied, changes watched, whole trees as tar archives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import AlreadyExists, InvalidInput, NotSupported
from belljar.server.answers import Streamed, answer, event_stream, nothing, sse
from belljar.server.asking import body_of, query_flag, query_text, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_COMMAND, OF_A_FILE, events, raw
from belljar.server.pandastack.fs import AT_PATH, PATH, USER, user_of
from belljar.server.patience import patiently
from belljar.server.shapes import answered, choice, flag, guest_text, maybe, record, switch, text
from belljar.server.telling import last_words
from belljar.service import files, trees
from belljar.service.values import FileEvent

TAR = "application/x-tar"
PARENTS = flag("Folders on the way, too; then one that is there is no error.", default=True)
MAKE = record({"path": PATH}, {"parents": PARENTS, **USER})
MOVE = record({"source": PATH, "target": PATH}, USER)
COPY = record({"source": PATH, "target": PATH}, {"recursive": flag("A folder with all that is in it."), **USER})
WATCH = record({"path": PATH}, {"recursive": switch("The folders below it, too."), **USER})
CHANGE = answered(
    {
        "type": choice(("created", "modified", "removed", "moved", "overflow"), "`overflow`: some changes were lost."),
        "path": guest_text(empty=True),
        "from": maybe(guest_text("Where something moved came from, if that was watched.")),
    }
)
CHANGES = events(
    watching=answered({"path": guest_text(), "recursive": flag()}, "From now on nothing is missed."),
    change=CHANGE,
    error=answered({"error": text(), "code": text()}, "The stream broke; nothing follows."),
)
OF_A_TREE = (*OF_A_FILE, *OF_A_COMMAND, AlreadyExists, NotSupported)


async def mkdir(request: Request) -> Response:
    fields = await read_fields(request)
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await sandbox.files.mkdir(fields.text("path"), parents=fields.flag("parents", True), user=fields.optional_text("user"))
    return nothing()


async def move(request: Request) -> Response:
    fields = await read_fields(request)
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        work = sandbox.files.move(fields.text("source"), fields.text("target"), user=fields.optional_text("user"))
        await patiently(request, work)
    return nothing()


async def copy(request: Request) -> Response:
    fields = await read_fields(request)
    source, target, recursive = fields.text("source"), fields.text("target"), fields.flag("recursive")
    async with workspace_of(request).guest(request.path_params["id"]) as sandbox:
        await patiently(request, sandbox.files.copy(source, target, recursive=recursive, user=fields.optional_text("user")))
    return nothing()


async def watch(request: Request) -> Response:
    path, recursive = query_text(request, "path"), query_flag(request, "recursive")
    changes = files.watch(workspace_of(request), request.path_params["id"], path, recursive=recursive, user=user_of(request))
    return await event_stream(_events(changes, path, recursive), last_words(request, "error"), endless=True)


async def _events(changes: AsyncGenerator[FileEvent | None, None], path: str, recursive: bool) -> AsyncGenerator[bytes, None]:
    async with aclosing(changes):
        async for change in changes:
            if change is None:
                yield sse("watching", {"path": path, "recursive": recursive})
            else:
                yield sse("change", {"type": change.type, "path": change.path, "from": change.source})


async def pack(request: Request) -> Response:
    pieces = trees.pack(workspace_of(request), request.path_params["id"], query_text(request, "path"), user_of(request))
    return Streamed(await files.opened(pieces), TAR)


async def unpack(request: Request) -> Response:
    path = query_text(request, "path")
    await trees.unpack(workspace_of(request), request.path_params["id"], path, body_of(request), user_of(request))
    return answer({"path": path})


FS = "/sandboxes/{id}/fs"
UNPACKING = (
    "Names that lead out of the folder are refused. A folder that is not there appears when all of the archive was unpacked, or "
    "not at all. Into one that is there the archive is merged; a failure then leaves what was unpacked so far."
)

ROUTES = [
    call("POST", f"{FS}/mkdir", mkdir, "Make a folder", body=MAKE, errors=(*OF_A_FILE, AlreadyExists)),
    call("POST", f"{FS}/move", move, "Move a file or folder", body=MOVE, errors=(*OF_A_FILE, AlreadyExists)),
    call("POST", f"{FS}/copy", copy, "Copy a file or folder", body=COPY, errors=(*OF_A_FILE, AlreadyExists)),
    call(
        "GET",
        f"{FS}/watch",
        watch,
        "Follow the changes under a path",
        query=WATCH,
        gives=CHANGES,
        errors=(*OF_A_FILE, InvalidInput),
    ),
    call(
        "GET",
        f"{FS}/tree",
        pack,
        "Read a folder, or a file, as a tar archive",
        about="Names in it are relative to the folder. An archive that breaks off was not complete: something could not be read.",
        query=AT_PATH,
        gives=raw("The archive.", TAR),
        errors=OF_A_TREE,
    ),
    call(
        "PUT",
        f"{FS}/tree",
        unpack,
        "Unpack a tar archive into a folder",
        about=UNPACKING,
        query=AT_PATH,
        body=raw("The archive, of any length.", TAR),
        gives=answered({"path": guest_text()}),
        errors=OF_A_TREE,
    ),
]
