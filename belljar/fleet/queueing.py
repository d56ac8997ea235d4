"""Turns for starting machines: few at a time, and a queue that does not grow without end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from belljar.errors import HostBusy


class StartQueue:
    """`parallel` starts at a time. Whoever finds `max_waiting` others waiting already is told to come again."""

    def __init__(self, parallel: int, max_waiting: int) -> None:
        self.turns = asyncio.Semaphore(parallel)
        self._limit = parallel + max_waiting
        self.due = 0  # starts that wait or are under way

    @contextmanager
    def admitted(self, count: int = 1) -> Iterator[None]:
        """A place in the queue for `count` starts, all or none. The turns themselves come later."""
        if self.due >= self._limit:
            raise HostBusy(
                f"no compute capacity available: {self.due} sandboxes are being started or wait for it; try again in a moment",
                retry_after_s=2,
            )
        self.due += count
        try:
            yield
        finally:
            self.due -= count
