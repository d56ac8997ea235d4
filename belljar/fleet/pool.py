"""Machines started ahead, so that a create only has to let one run.

Each is restored, has answered once (which translates the code that the first real answer needs) and is paused again. A create
takes one, thaws it under its new name, and a replacement is started in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from belljar.errors import BelljarError
from belljar.fleet.context import Context, Origin, Wish
from belljar.fleet.launching import Running, discard, enliven, thaw
from belljar.store.db import SandboxRecord
from belljar.store.manifest import Manifest, SavedMachine
from belljar.vm.memory import MemoryImage

if TYPE_CHECKING:
    from belljar.fleet.sandbox import Sandbox
    from belljar.fleet.sandboxes import Fleet

log = logging.getLogger(__name__)


@dataclass
class Ready:
    """A machine that waits, paused, for someone to want it."""

    record: SandboxRecord
    running: Running


class Pool:
    """Ready machines by template digest, `pool_size` of each that was ever asked for."""

    def __init__(self, fleet: Fleet, context: Context) -> None:
        self._fleet = fleet
        self._context = context
        self._ready: dict[str, deque[Ready]] = {}
        self._starting: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, origin: Origin, wish: Wish) -> Sandbox | None:
        """A ready machine turned into the wished sandbox, or None if there is none."""
        if not self._context.settings.pool_size:
            return None
        queue = self._ready.setdefault(origin.manifest.template_digest, deque())
        ready = queue.popleft() if queue else None
        self._refill(origin)
        if ready is None or ready.running.machine.ended or ready.running.link is None:
            return None
        change = partial(self._context.records.update_sandbox, ready.record.id, state="running", created_at=time.time())
        try:
            await ready.running.machine.resume()
            record = await asyncio.to_thread(change, env=wish.env, metadata=wish.metadata, expires_at=wish.expires_at)
            await thaw(ready.running.link, record, origin.manifest)
        except BaseException:
            await self._discard(ready)
            raise
        return self._fleet.hold(record, ready.running)

    async def fill(self, origin: Origin) -> None:
        """Wait until the pool for this template is full."""
        self._refill(origin)
        await asyncio.gather(*self._tasks)

    def _refill(self, origin: Origin) -> None:
        digest = origin.manifest.template_digest
        missing = self._context.settings.pool_size - len(self._ready.setdefault(digest, deque())) - self._starting.get(digest, 0)
        for _ in range(missing):
            self._starting[digest] = self._starting.get(digest, 0) + 1
            task = asyncio.create_task(self._add(origin.saved, origin.manifest, origin.image.duplicate()), name="pool")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _add(self, saved: SavedMachine, manifest: Manifest, image: MemoryImage) -> None:
        try:
            origin = Origin(saved, manifest, image)
            record, machine, lock = await self._fleet.prepare(origin, Wish({}, {}, None), manifest.disk_mib, state="pooled")
            try:
                link = await enliven(machine, record, manifest)
                async with await link.open("process.start", WARM_UP) as channel:
                    async for _ in channel:
                        pass
                await machine.pause()
            except BaseException:
                await discard(self._context, record.id, machine, lock)
                raise
            self._ready[manifest.template_digest].append(Ready(record, Running(machine, link, lock)))
        except BelljarError as problem:
            log.warning("a machine could not be started ahead: %s", problem.message)
        finally:
            image.close()
            self._starting[manifest.template_digest] -= 1

    async def _discard(self, ready: Ready) -> None:
        await ready.running.kill()
        await discard(self._context, ready.record.id, None, None)

    async def aclose(self) -> None:
        """End all ready machines; nobody was told of them."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for queue in self._ready.values():
            while queue:
                await self._discard(queue.popleft())


WARM_UP = {"argv": ["true"], "stdin": False, "background": False}
