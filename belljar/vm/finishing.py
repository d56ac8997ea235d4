"""Work that is brought to its end, also when its caller is cancelled: the caller leaves when it is done.

A thread cannot be called back. If its caller left at once and closed the descriptors that it works on, it would go on with whatever
file gets their numbers next; and what it makes would belong to nobody. Some steps of a machine are the same: half of one is worse
than either end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], undo: Callable[[T], object] | None = None) -> T:
    """Wait for `work`. A caller that is cancelled meanwhile gets no result; `undo` gets it instead."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with suppress(asyncio.CancelledError):  # of a caller that has lost its patience: the work has not
                await asyncio.wait([working])
        if not working.cancelled() and working.exception() is None and undo is not None:
            undo(working.result())
        raise


async def in_thread(work: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None) -> T:
    """`asyncio.to_thread` that is finished."""
    # Not a task: that would be cancelled along with all others when the loop ends, and the thread would not.
    return await finish(asyncio.get_running_loop().run_in_executor(None, partial(work, *args)), undo)
