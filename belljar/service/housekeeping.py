"""What happens without being asked for: sandboxes whose time is over end, persistent ones that nobody uses go to sleep."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from belljar.errors import BelljarError, SandboxNotFound
from belljar.fleet.recovery import SweepReport
from belljar.service.lifecycle import hibernate_idle
from belljar.service.workspace import Parts, Workspace
from belljar.store.db import SandboxRecord

log = logging.getLogger(__name__)

EVERY_S = 5.0
# Sandboxes that are asked, or put to sleep, at the same time: one that is slow to answer must not hold up the others.
AT_ONCE = 4


class Housekeeping:
    """Goes round every few seconds while the service is open. `known` is what was there when it was opened."""

    def __init__(self, parts: Parts, known: Mapping[str, SandboxRecord]) -> None:
        self._parts = parts
        self._told_dead: set[str] = set()
        self._known = known
        self._missed: Mapping[str, SandboxRecord] = {}
        self._few = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(EVERY_S, self._parts.settings.idle_timeout_s / 2))
            try:
                await self.round()
            except BelljarError as problem:
                log.warning("housekeeping failed and is tried again: %s", problem.message)
            except Exception:
                log.exception("housekeeping failed and is tried again")

    async def round(self) -> None:
        before = await self._records()
        await self.tell_swept(before, await self._parts.fleet.sweep())
        now = await self._records()
        await self._tell_dead(now)
        await self._tell_gone(now)
        self._parts.activity.keep(now.keys())
        self._parts.logs.keep(now.keys())
        sleepers = [record for record in now.values() if record.persistent and record.state == "running"]
        await asyncio.gather(*(self._hibernate_idle(record) for record in sleepers))

    async def tell_swept(self, before: Mapping[str, SandboxRecord], report: SweepReport) -> None:
        """Events of what a sweep has ended; `before` is how things stood when it began."""
        for sandbox_id in report.expired:
            if record := before.get(sandbox_id):
                await self._parts.journal.note(record, "sandbox.deleted", reason="its time to live was over")

    async def _tell_dead(self, now: Mapping[str, SandboxRecord]) -> None:
        dead = {record.id: record for record in now.values() if record.state == "dead"}
        for sandbox_id in dead.keys() - self._told_dead:
            if not await self._parts.journal.tells(sandbox_id, "sandbox.died"):
                await self._parts.journal.note(dead[sandbox_id], "sandbox.died", reason=dead[sandbox_id].reason)
        self._told_dead = set(dead)

    async def _tell_gone(self, now: Mapping[str, SandboxRecord]) -> None:
        """Of those that others have ended, the command line for one. Calls of this server tell of theirs by themselves: they get
        the time of one round for it."""
        journal = self._parts.journal
        for sandbox_id, record in self._missed.items():
            if await journal.tells(sandbox_id, "sandbox.created") and not await journal.tells(sandbox_id, "sandbox.deleted"):
                await journal.note(record, "sandbox.deleted", reason="another program ended it")
        self._missed = {sandbox_id: record for sandbox_id, record in self._known.items() if sandbox_id not in now}
        self._known = now

    async def _hibernate_idle(self, record: SandboxRecord) -> None:
        try:
            async with self._few:
                await hibernate_idle(Workspace(self._parts, record.workspace), record.id)
        except SandboxNotFound:
            pass  # killed at the same moment
        except BelljarError as problem:
            # Killed in the middle of it: whatever it failed with then, nobody is waiting for it.
            if await asyncio.to_thread(self._parts.records.find_sandbox, record.id):
                log.warning("sandbox %s could not be put to sleep: %s", record.id, problem.message)

    async def _records(self) -> dict[str, SandboxRecord]:
        return {record.id: record for record in await asyncio.to_thread(self._parts.records.list_sandboxes)}
