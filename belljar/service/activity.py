"""Who is using which sandbox: calls in flight, and when the last one ended.

A call counts itself in before it asks for the sandbox's lock, and hibernation looks at the count under that lock. So a call
either finds the sandbox awake and keeps it so, or waits for the hibernation to end and wakes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class _Use:
    in_flight: int = 0
    last: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Activity:
    """The use of every sandbox that was used since this process began; the others count as used at its start."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._began = time.monotonic()

    @contextmanager
    def using(self, sandbox_id: str) -> Iterator[None]:
        use = self._use(sandbox_id)
        use.in_flight += 1
        try:
            yield
        finally:
            use.in_flight -= 1
            use.last = time.monotonic()

    def touch(self, sandbox_id: str) -> None:
        self._use(sandbox_id).last = time.monotonic()

    def lock(self, sandbox_id: str) -> asyncio.Lock:
        """Held by whoever moves the sandbox between awake and asleep."""
        return self._use(sandbox_id).lock

    def in_flight(self, sandbox_id: str) -> int:
        use = self._uses.get(sandbox_id)
        return use.in_flight if use else 0

    def idle_s(self, sandbox_id: str) -> float:
        use = self._uses.get(sandbox_id)
        if use is None:
            return time.monotonic() - self._began
        return 0.0 if use.in_flight else time.monotonic() - use.last

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget all others, but for those that someone still waits on."""
        for gone in [name for name, use in self._uses.items() if name not in sandbox_ids and not use.in_flight]:
            if not self._uses[gone].lock.locked():
                del self._uses[gone]

    def _use(self, sandbox_id: str) -> _Use:
        return self._uses.setdefault(sandbox_id, _Use())
