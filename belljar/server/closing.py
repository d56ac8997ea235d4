"""The end of the server, as the calls under way learn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from belljar.errors import ShuttingDown


class Closing:
    """`begun`: nothing new is taken on, and what would go on for ever ends. `over`: so does everything else."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        """Until the server is told to stop."""
        await self.begun.wait()


_CURRENT: ContextVar[Closing] = ContextVar("closing")


@contextmanager
def during(closing: Closing) -> Iterator[None]:
    """Whatever is done in this block finds `closing` by itself."""
    token = _CURRENT.set(closing)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def closing() -> Closing:
    """That of the server which the caller is a request of; one that never comes where there is no server."""
    return _CURRENT.get(None) or Closing()


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is being stopped; try again when it is back", retry_after_s=5)
