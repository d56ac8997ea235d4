"""Answers as they leave: JSON that is always valid, bytes and events that stream, and an end when nobody reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from belljar.errors import BelljarError, ShuttingDown
from belljar.server.closing import closing, shutting_down

T = TypeVar("T")

# A reader that takes nothing for so long is gone, whatever its connection says.
STALLED_S = 300.0
FIRST_S, PING_EVERY_S = 1.0, 10.0
PING = b": ping\n\n"
# The second is for nginx, which would hold events back until it has some KiB of them.
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
GOODBYE = b": the server is being stopped\n\n"


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON. In ASCII, because names from guests may hold half characters, which no UTF-8 can carry."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def nothing() -> Response:
    return Response(status_code=204)


def timestamp(seconds: float | None) -> str | None:
    """RFC 3339 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sse(event: str | None, data: Any, number: int | None = None) -> bytes:
    """One server-sent event: LF only, and the data on one line. Its number is what a client that comes back may go on after."""
    head = (f"id: {number}\n" if number is not None else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {json.dumps(data)}\n\n".encode()


async def with_pauses(
    source: AsyncGenerator[T, None], first_s: float, every_s: float, end: asyncio.Event
) -> AsyncGenerator[T | None, None]:
    """The items of `source`, and None whenever there was none for a while. Closes the source on the way out.

    Raises ShuttingDown once `end` is set.
    """
    wait_s = first_s
    pending: asyncio.Task[T] | None = None
    ending = asyncio.ensure_future(end.wait())
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(source))
            await asyncio.wait([pending, ending], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            wait_s = every_s
            if ending.done():
                raise shutting_down()
            if not pending.done():
                yield None
                continue
            done, pending = pending, None
            try:
                yield done.result()
            except StopAsyncIteration:
                return
    finally:
        ending.cancel()
        if pending is not None:
            pending.cancel()
            with suppress(BaseException):
                await pending
        await source.aclose()


async def event_stream(
    source: AsyncGenerator[bytes, None], tell: Callable[[BelljarError], bytes] | None = None, *, endless: bool = False
) -> Response:
    """Server-sent events with a comment now and then. What fails at once is still an ordinary error; later, `tell` makes of it
    the last event. An `endless` stream ends as soon as the server is told to stop; others get the grace of all calls."""
    end = closing().begun if endless else closing().over
    events = with_pauses(source, FIRST_S, PING_EVERY_S, end)
    first = await anext(events, PING)

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield PING if first is None else first
            async for item in events:
                yield PING if item is None else item
        except ShuttingDown as problem:
            if tell is None and endless:
                yield GOODBYE
            else:
                yield (tell or _told)(problem)
        except BelljarError as problem:
            if tell is None:
                raise
            yield tell(problem)
        finally:
            await events.aclose()

    return Streamed(chunks(), "text/event-stream; charset=utf-8", EVENT_HEADERS)


def _told(problem: BelljarError) -> bytes:
    return sse("error", {"error": problem.message, "code": problem.code})


class Streamed(Response):
    """A body that is sent piece by piece. Its source is closed at once when the client goes away."""

    def __init__(self, body: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None) -> None:
        self._body = body
        self.status_code = 200
        self.background = None
        self.init_headers({**(headers or {}), "Content-Type": media_type})
        # No length is known, and that of an empty body is the wrong one.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait([pump, gone], return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            for task in (pump, gone):
                task.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
            await self._body.aclose()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._body:
            async with asyncio.timeout(STALLED_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
