"""The event log as the service writes and follows it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection
from typing import Any

from belljar.store.db import SandboxRecord
from belljar.store.events import EventRecord, Events

log = logging.getLogger(__name__)

# Another process may have written: followers look for themselves this often, and at once for what this process writes.
LOOK_EVERY_S = 2.0
BATCH = 1000


class Journal:
    """Writes events, and tells followers at once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.counts: Counter[str] = Counter()  # by kind, since this process began
        self._written = asyncio.Event()

    async def note(self, record: SandboxRecord, kind: str, **payload: Any) -> None:
        await self.note_of(record.workspace, record.id, kind, **payload)

    async def note_of(self, workspace: str, sandbox_id: str, kind: str, **payload: Any) -> None:
        """The same for one that has no record any more."""
        await asyncio.to_thread(self._events.add, workspace, sandbox_id, kind, payload)
        self.counts[kind] += 1
        told = {name: value for name, value in payload.items() if value is not None}
        log.info("%s", kind, extra={"fields": {"sandbox": sandbox_id, "workspace": workspace, **told}})
        self._written.set()
        self._written = asyncio.Event()

    async def had(self, workspace: str, sandbox_id: str) -> bool:
        """Whether this workspace once had a sandbox with that id."""
        found = await asyncio.to_thread(self._events.of_sandbox, sandbox_id, last=1)
        return any(event.workspace == workspace for event in found)

    async def unended(self) -> list[tuple[str, str]]:
        return await asyncio.to_thread(self._events.unended)

    async def last_of(self, kinds: Collection[str]) -> dict[str, str]:
        return await asyncio.to_thread(self._events.last_of, kinds)

    async def tells(self, sandbox_id: str, kind: str) -> bool:
        return await asyncio.to_thread(self._events.has, sandbox_id, kind)

    async def read(self, workspace: str, sandbox_id: str | None, *, after: int = 0, last: int = BATCH) -> list[EventRecord]:
        """The last events that came after number `after`, oldest first."""
        if sandbox_id is None:
            return await asyncio.to_thread(self._events.of_workspace, workspace, after=after, last=last)
        return await asyncio.to_thread(self._events.of_sandbox, sandbox_id, after=after, last=last)

    async def read_on(self, workspace: str, sandbox_id: str | None, after: int) -> list[EventRecord]:
        """The first events after number `after`, at most BATCH: whoever asks again after the last of them misses none."""
        if sandbox_id is None:
            return await asyncio.to_thread(self._events.next_of_workspace, workspace, after=after, most=BATCH)
        return await asyncio.to_thread(self._events.next_of_sandbox, sandbox_id, after=after, most=BATCH)

    async def follow(
        self, workspace: str, sandbox_id: str | None, after: int | None, last: int
    ) -> AsyncIterator[EventRecord | None]:
        """Every event after number `after`, or the last ones if it is None, and then every new one. None is yielded when for a
        while there was none."""
        if after is None:
            after = await asyncio.to_thread(self._events.newest)
            for event in await self.read(workspace, sandbox_id, last=last):
                after = max(after, event.seq)
                yield event
        while True:
            written = self._written
            found = await self.read_on(workspace, sandbox_id, after)
            for event in found:
                after = event.seq
                yield event
            if not found:
                try:
                    await asyncio.wait_for(written.wait(), LOOK_EVERY_S)
                except TimeoutError:
                    yield None
