"""Commands: run to the end, or streamed as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import DeadlineExceeded
from belljar.server.answers import answer, event_stream, sse
from belljar.server.asking import Fields, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_COMMAND, events
from belljar.server.patience import patiently
from belljar.server.shapes import answered, flag, guest_text, number, record, text, whole
from belljar.server.telling import last_words
from belljar.service.running import Chunk, Ended, run_command, stream_command

# What the client's own stream waits for at most, when its user names no limit.
DEFAULT_TIMEOUT_S = 900.0
LIMITS = "A command that ends with an error is a 200. 16 MiB of each stream are kept; a time limit that ran out is a 504."

EXEC = record(
    {"cmd": guest_text("A line for the shell.", examples=["echo hello"])},
    {"timeout_seconds": number("It is stopped after that; more than 0.", default=DEFAULT_TIMEOUT_S)},
)
RESULT = answered(
    {
        "stdout": text(empty=True, nul=True),
        "stderr": text(empty=True, nul=True),
        "exit_code": whole("128 and the signal's number if a signal ended it.", low=0, high=255),
        "duration_ms": whole(),
        "truncated": flag("There was more output than is kept."),
    },
    name="CommandResult",
)
CHUNK = answered({"chunk": text("Whole characters.", nul=True)})
STREAM = events(
    stdout=CHUNK,
    stderr=CHUNK,
    exit=answered({"exit_code": whole()}, "The last event."),
    error=answered({"error": text(), "code": text()}, "The last event, if it failed."),
)


def _limit(fields: Fields) -> float:
    return fields.number("timeout_seconds", DEFAULT_TIMEOUT_S)


async def run(request: Request) -> Response:
    fields = await read_fields(request)
    work = run_command(workspace_of(request), request.path_params["id"], fields.text("cmd"), _limit(fields))
    result = await patiently(request, work, cancel=True)
    return answer(
        {
            "stdout": result.stdout_text,
            "stderr": result.stderr_text,
            "exit_code": result.exit_code if result.exit_code is not None else 128 + (result.signal or 0),
            "duration_ms": int(result.duration_s * 1000),
            "truncated": bool(result.dropped.stdout or result.dropped.stderr),
        }
    )


async def stream(request: Request) -> Response:
    fields = await read_fields(request)
    source = stream_command(workspace_of(request), request.path_params["id"], fields.text("cmd"), _limit(fields))
    return await event_stream(_events(source), last_words(request, "error"))


async def _events(source: AsyncGenerator[Chunk | Ended, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        try:
            async for item in source:
                if isinstance(item, Chunk):
                    yield sse(item.stream, {"chunk": item.text})
                else:
                    yield sse("exit", {"exit_code": item.exit_code})
        except DeadlineExceeded as problem:
            # However soon it runs out: this client looks for a time limit in the stream.
            yield sse("error", {"error": problem.message, "code": problem.code})


ROUTES = [
    call("POST", "/sandboxes/{id}/exec", run, "Run a command", about=LIMITS, body=EXEC, gives=RESULT, errors=OF_A_COMMAND),
    call(
        "POST", "/sandboxes/{id}/exec/stream", stream, "Run a command and follow it", body=EXEC, gives=STREAM, errors=OF_A_COMMAND
    ),
]
