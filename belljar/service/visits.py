"""Who looks at ports of sandboxes right now, and by what right. When the right ends, so does the looking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from belljar.errors import BelljarError, HostError, Unauthorized
from belljar.fleet.ports import PortStream
from belljar.service.links import Link

# Of one sandbox at a time. A crowd at a public port is kept from the guest's other work, and from this host's memory.
MAX_CONNECTIONS = 256
KEPT_FOR_OWNERS = 32


@dataclass(frozen=True)
class Right:
    """By a link, because the port is public, or, with neither, as the workspace that the sandbox belongs to."""

    link: Link | None = None
    public: bool = False

    @property
    def is_owners(self) -> bool:
        return self.link is None and not self.public


OWNER, PUBLIC = Right(), Right(public=True)


class Visit:
    """One connection to a port, from the moment that it is asked for."""

    def __init__(self, port: int, right: Right) -> None:
        self.port, self.right = port, right
        self._stream: PortStream | None = None
        self._problem: BelljarError | None = None

    def begin(self, stream: PortStream) -> None:
        """Raises if the right has ended in the time that the connection took."""
        if self._problem is not None:
            raise self._problem
        self._stream = stream

    def cut(self, problem: BelljarError) -> None:
        self._problem = problem
        if self._stream is not None:
            self._stream.cut(problem)


class Visits:
    """All of one service."""

    def __init__(self) -> None:
        self._open: dict[str, set[Visit]] = {}

    @contextmanager
    def visiting(self, sandbox_id: str, port: int, right: Right) -> Iterator[Visit]:
        """Counts it as long as the block lasts, and cuts it when its link expires."""
        others = self._open.setdefault(sandbox_id, set())
        if len(others) >= MAX_CONNECTIONS - (0 if right.is_owners else KEPT_FOR_OWNERS):
            raise HostError(f"sandbox {sandbox_id} has {len(others)} connections to its ports open; try again later")
        visit = Visit(port, right)
        others.add(visit)
        timer = None
        if right.link is not None:
            expired = Unauthorized("the link to this preview has expired; ask for a new one")
            timer = asyncio.get_running_loop().call_later(max(0.0, right.link.expires_at - time.time()), visit.cut, expired)
        try:
            yield visit
        finally:
            if timer is not None:
                timer.cancel()
            others.discard(visit)
            if not others:
                self._open.pop(sandbox_id, None)

    def cut(self, sandbox_id: str, port: int, which: Callable[[Right], bool], why: str) -> None:
        """End those visits to a port whose right `which` finds to be over."""
        for visit in list(self._open.get(sandbox_id, ())):
            if visit.port == port and which(visit.right):
                visit.cut(Unauthorized(why))
