"""What happened to a sandbox, or in the workspace: read at once, or followed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import BelljarError
from belljar.server.answers import PING, answer, event_stream, sse, timestamp
from belljar.server.asking import query_flag, query_of, query_whole
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_SANDBOX, events
from belljar.server.shapes import TIME, answered, listing, record, switch, text, whole
from belljar.service.values import EventRecord
from belljar.service.workspace import Workspace

DEFAULT_TAIL, MAX_TAIL = 100, 1000
GONE = "Also of one that is gone."

ASKED = record(
    {},
    {
        "tail": whole(f"So many of the last ones; {DEFAULT_TAIL} unless `after` is given.", high=MAX_TAIL),
        "after": whole(f"Only those after this `seq`. Without `tail` the next {MAX_TAIL}, so that none is missed.", default=0),
        "follow": switch("Server-sent events, and every new one as it happens: with `after`, all that came after it first."),
    },
)
EVENT = answered({"seq": whole(), "time": TIME, "sandbox_id": text(), "type": text(), "payload": {"type": "object"}}, name="Event")
TOLD = (answered({"events": listing(EVENT, "Oldest first.")}), events(event=EVENT))


def render_event(event: EventRecord) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "time": timestamp(event.at),
        "sandbox_id": event.sandbox_id,
        "type": event.type,
        "payload": dict(event.payload),
    }


async def read(request: Request) -> Response:
    workspace, sandbox_id = workspace_of(request), request.path_params.get("id")
    tail, after = query_whole(request, "tail", DEFAULT_TAIL), query_whole(request, "after", 0)
    if query_flag(request, "follow"):
        await workspace.check_known(sandbox_id)
        return await event_stream(_follow(workspace, sandbox_id, _seen(request) or after or None, tail), _end, endless=True)
    going_on = after and not query_of(request).get("tail")
    found = await workspace.events(sandbox_id, after=after, last=None if going_on else tail)
    return answer({"events": [render_event(event) for event in found]})


async def _follow(workspace: Workspace, sandbox_id: str | None, after: int | None, tail: int) -> AsyncGenerator[bytes, None]:
    async for event in workspace.follow(sandbox_id, after, tail):
        yield sse("event", render_event(event), event.seq) if event is not None else PING


def _seen(request: Request) -> int:
    """What a browser that lost its stream says when it comes back by itself: the number of the last event it got."""
    said = request.headers.get("last-event-id", "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) <= 18 else 0


def _end(problem: BelljarError) -> bytes:
    return sse("end", {"error": problem.message, "code": problem.code})


ROUTES = [
    call(
        "GET",
        "/sandboxes/{id}/events",
        read,
        "What happened to a sandbox",
        about=GONE,
        query=ASKED,
        gives=TOLD,
        errors=OF_A_SANDBOX,
    ),
    call("GET", "/events", read, "What happened in the workspace", query=ASKED, gives=TOLD),
]
