"""Tasks that are cancelled while a thread works for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest


class Gate:
    """Holds a thread up until its task has been cancelled."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def wait(self) -> None:
        """For the thread."""
        self.began.set()
        assert self.may_end.wait(60), "nobody let the work end"

    async def until_began(self) -> None:
        assert await asyncio.to_thread(self.began.wait, 60), "the work did not begin"

    async def call_off(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task in the middle of its thread's work, and see it end as cancelled."""
        await self.until_began()
        task.cancel()
        await asyncio.sleep(0.05)
        self.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
