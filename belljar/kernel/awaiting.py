"""Cells with a top-level await: one event loop for all of them, and an interrupt that leaves nothing of a cell behind on it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

from belljar.kernel.interrupts import Gate

CANCEL_GRACE_S = 1.0
# These need a running loop without an await in sight, as in `task = asyncio.create_task(work())`; those bring their own.
_NEEDS_LOOP = re.compile(r"\b(create_task|ensure_future|get_running_loop)\b")
_BRINGS_LOOP = re.compile(r"\b(asyncio\.run|run_until_complete|asyncio\.Runner)\b")


def needs_loop(code: str) -> bool:
    """Whether a cell without a top-level await should still run inside the loop."""
    return _NEEDS_LOOP.search(code) is not None and _BRINGS_LOOP.search(code) is None


class Runner:
    """Runs coroutines on a loop that is made when the first one comes, which must be after the fork."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.cancelled = False  # the running cell was told to stop where it awaits

    def __call__(self, cell: Coroutine[Any, Any, Any]) -> Any:
        loop = self._find_loop()
        self.cancelled = False
        self._task = loop.create_task(cell)
        self._gate.awaiting = self._cancel
        try:
            return loop.run_until_complete(self._task)
        except KeyboardInterrupt:
            if not self._task.done():  # it hit another task, or a callback
                self._task.cancel()
                loop.run_until_complete(asyncio.wait([self._task], timeout=CANCEL_GRACE_S))
            raise
        finally:
            self._gate.awaiting = None
            self._task = None

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that asyncio.get_event_loop() gives to the user's code."""
        try:
            self.loop = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:  # asyncio.run() leaves none behind
            self.loop = None
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop

    def _cancel(self) -> bool:
        """Called on SIGINT. While a step of some task runs, KeyboardInterrupt is better: it stops that step."""
        if self.loop is None or self._task is None or asyncio.current_task(self.loop) is not None:
            return False
        self.cancelled = True
        self._task.cancel()
        self.loop.call_soon_threadsafe(lambda: None)  # wakes the loop from its select
        return True
