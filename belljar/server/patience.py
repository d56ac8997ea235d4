"""Work that may take longer than a client waits for a byte, or longer than the client itself stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from belljar.server.answers import until_gone
from belljar.server.closing import closing, shutting_down
from belljar.server.protocol import INTERIM

T = TypeVar("T")

INTERIM_EVERY_S = 5.0
# The one client that is known to wait on, and to be the better for it. Node's drops the connection instead.
PATIENT_CLIENT = "pandastack-py/"


class ClientGone(Exception):
    """Nobody is left to answer."""


async def patiently(request: Request, work: Coroutine[Any, Any, T], *, cancel: bool = False) -> T:
    """The result of `work`, with a sign of life to the client now and then.

    With `cancel`, work for a client that went away is given up. All work is when the server has no time left for it. The
    request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    over = asyncio.ensure_future(closing().over.wait())
    gone = asyncio.ensure_future(until_gone(request.receive))
    interim = request.scope.get("extensions", {}).get(INTERIM)
    if not request.headers.get("user-agent", "").startswith(PATIENT_CLIENT):
        interim = None
    try:
        while not task.done():
            watched = {task, over, gone} if cancel and not gone.done() else {task, over}
            await asyncio.wait(watched, timeout=INTERIM_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if cancel and gone.done() and not task.done():
                raise ClientGone
            if over.done() and not task.done():
                raise shutting_down()
            if interim is not None and not task.done():
                interim()
        return task.result()
    finally:
        for each in (task, gone, over):
            each.cancel()
        await asyncio.gather(task, gone, over, return_exceptions=True)
