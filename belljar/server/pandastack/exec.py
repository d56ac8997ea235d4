"""Commands: run to the end, or streamed as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import BelljarError
from belljar.server.answers import answer, event_stream, sse
from belljar.server.asking import Fields, read_fields
from belljar.server.auth import workspace_of
from belljar.server.patience import patiently
from belljar.service.running import Chunk, Ended, run_command, stream_command

# What the client's own stream waits for at most, when its user names no limit.
DEFAULT_TIMEOUT_S = 900.0


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
    return await event_stream(_events(source))


async def _events(source: AsyncGenerator[Chunk | Ended, None]) -> AsyncGenerator[bytes, None]:
    """A failure before anything was sent is raised, and answered with its status; a later one is the last event."""
    begun = False
    try:
        async for item in source:
            begun = True
            yield sse(item.stream, {"chunk": item.text}) if isinstance(item, Chunk) else sse("exit", {"exit_code": item.exit_code})
    except BelljarError as problem:
        # A time limit is always told in the stream: that is where this client looks for it.
        if not begun and problem.code != "deadline_exceeded":
            raise
        yield sse("error", {"error": problem.message, "code": problem.code})
    finally:
        await source.aclose()


ROUTES = [
    Route("/sandboxes/{id}/exec", run, methods=["POST"]),
    Route("/sandboxes/{id}/exec/stream", stream, methods=["POST"]),
]
