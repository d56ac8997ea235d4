"""The event log: read at once, or followed."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from belljar.sdk._async.adaptors import Flow
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk.values import SandboxEvent


async def event_log(
    transport: AsyncTransport, path: str, follow: bool, tail: int | None, after: int, *, last: str | None = None
) -> Flow[SandboxEvent]:
    """With `last`, following ends after an event of that type."""
    params: dict[str, Any] = {"tail": tail, "after": after}
    if not follow:
        found = await transport.object("GET", path, params=params)
        for item in found.get("events") or []:
            yield SandboxEvent.from_dict(item)
        return
    async with aclosing(transport.events("GET", path, params={**params, "follow": "1"})) as events:
        async for event in events:
            if event.name == "event":
                happened = SandboxEvent.from_dict(event.data)
                yield happened
                if happened.type == last:
                    return
