"""What the programs of a sandbox wrote: the last lines at once, or every new one as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from belljar.server.answers import PING, event_stream, sse
from belljar.server.asking import query_flag, query_of, query_whole
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_SANDBOX, events, plain
from belljar.server.shapes import answered, choice, record, switch, text, whole
from belljar.service.outputs import follow_log, read_log
from belljar.service.values import Line
from belljar.service.workspace import Workspace

MAX_TAIL = 1_000_000
LINES_AT_ONCE = 500
BOTH = "both"
ASKED = record(
    {},
    {
        "stream": choice([BOTH, "stdout", "stderr", ""], "Whose lines.", default=BOTH),
        "follow": switch("Server-sent events, and every new line as it is written."),
        "tail": whole("So many of the last lines; all that are kept if absent.", high=MAX_TAIL),
    },
)
ABOUT = (
    "What commands, cells and background processes wrote through this server, the newest MiB or so. Nothing is woken for it. "
    "Terminals opened over a WebSocket are not in it. Lines of different programs are never mixed, and invalid UTF-8 is replaced."
)


async def read(request: Request) -> Response:
    workspace, sandbox_id = workspace_of(request), request.path_params["id"]
    stream = query_of(request).get("stream") or BOTH
    tail = query_whole(request, "tail", MAX_TAIL)
    if query_flag(request, "follow"):
        return await event_stream(_follow(workspace, sandbox_id, stream, tail), endless=True)
    lines = _last(_wanted(await read_log(workspace, sandbox_id), stream), tail)
    return PlainTextResponse("".join(f"{line.text}\n" for line in lines))


async def _follow(workspace: Workspace, sandbox_id: str, stream: str, tail: int) -> AsyncGenerator[bytes, None]:
    """The clients hand on whatever an event's data is, so there are no events but lines: the rest is comments."""
    first = True
    async with aclosing(follow_log(workspace, sandbox_id)) as batches:
        async for batch in batches:
            lines = _wanted(batch, stream)
            if first:
                lines, first = _last(lines, tail), False
                yield PING  # the stream has begun, even if the log is empty
            for start in range(0, len(lines), LINES_AT_ONCE):  # others get their turn in between
                some = lines[start : start + LINES_AT_ONCE]
                yield b"".join(sse(None, {"line": f"{line.text}\n", "stream": line.stream}) for line in some)


def _wanted(lines: list[Line], stream: str) -> list[Line]:
    return lines if stream == BOTH else [line for line in lines if line.stream == stream]


def _last(lines: list[Line], count: int) -> list[Line]:
    return lines[-count:] if count else []


ROUTES = [
    call(
        "GET",
        "/sandboxes/{id}/logs",
        read,
        "What the programs of a sandbox wrote",
        about=ABOUT,
        query=ASKED,
        gives=(plain("Lines."), events(message=answered({"line": text(), "stream": choice(["stdout", "stderr"])}))),
        errors=OF_A_SANDBOX,
    )
]
