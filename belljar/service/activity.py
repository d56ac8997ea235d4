"""Who is using which sandbox: calls and streams under way, when the last one ended, and work that goes on in the guest by itself.

A call counts itself in before it asks for the sandbox's lock, and hibernation looks at the count under that lock. So a call
either finds the sandbox awake and keeps it so, or waits for the hibernation to end and wakes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Use = Literal["call", "stream"]


@dataclass
class _Record:
    uses: Counter[Use] = field(default_factory=Counter)
    last: float = field(default_factory=time.monotonic)
    work: str | None = None
    sleep: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Activity:
    """The use of every sandbox that was used since this process began; the others count as used at its start."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._began = time.monotonic()

    @contextmanager
    def using(self, sandbox_id: str, use: Use = "call") -> Iterator[None]:
        record = self._record(sandbox_id)
        record.uses[use] += 1
        try:
            yield
        finally:
            record.uses[use] -= 1
            record.last = time.monotonic()

    def touch(self, sandbox_id: str) -> None:
        self._record(sandbox_id).last = time.monotonic()

    def lock(self, sandbox_id: str) -> asyncio.Lock:
        """Held by whoever moves the sandbox between awake and asleep."""
        return self._record(sandbox_id).lock

    def uses(self, sandbox_id: str) -> Mapping[Use, int]:
        """What is under way, by kind."""
        record = self._records.get(sandbox_id)
        return +record.uses if record else {}

    def note_work(self, sandbox_id: str, work: str | None) -> None:
        """What the guest was found to be working on without anyone waiting for it: while it does, the sandbox is in use."""
        record = self._record(sandbox_id)
        record.work = work
        if work is not None:
            record.last = time.monotonic()

    def works(self, sandbox_id: str) -> bool:
        """Whether the guest was working when it was last looked at."""
        record = self._records.get(sandbox_id)
        return record is not None and record.work is not None

    def note_sleep(self, sandbox_id: str, reason: str) -> None:
        """Why it is put to sleep, before it is: the event that tells it comes a moment later than the sleep."""
        self._record(sandbox_id).sleep = reason

    def sleep_reason(self, sandbox_id: str) -> str | None:
        record = self._records.get(sandbox_id)
        return record.sleep if record else None

    def idle_s(self, sandbox_id: str) -> float:
        record = self._records.get(sandbox_id)
        if record is None:
            return time.monotonic() - self._began
        return 0.0 if +record.uses else time.monotonic() - record.last

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget all others, but for those that someone still waits on."""
        for gone in [name for name, record in self._records.items() if name not in sandbox_ids and not +record.uses]:
            if not self._records[gone].lock.locked():
                del self._records[gone]

    def _record(self, sandbox_id: str) -> _Record:
        return self._records.setdefault(sandbox_id, _Record())
