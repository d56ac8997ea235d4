"""Machines started ahead, so that a create only has to let one run.

Each is restored, has answered once and run the template's warm-up cells (which translates the code that the first real answers
need), and is paused again. A create takes one, thaws it under its new name, and a replacement is started in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from belljar.errors import BelljarError, SandboxGone
from belljar.fleet.context import Context, Origin, Wish
from belljar.fleet.contexts import DEFAULT_ID
from belljar.fleet.launching import Running, discard, enliven, thaw
from belljar.store.db import SandboxRecord
from belljar.store.manifest import Manifest, SavedMachine
from belljar.vm.link import Link
from belljar.vm.memory import MemoryImage

if TYPE_CHECKING:
    from belljar.fleet.sandbox import Sandbox
    from belljar.fleet.starting import Starts

log = logging.getLogger(__name__)

REFILL_AFTER_S = 1.0

WARM_CELL_DEADLINE_S = 60.0


@dataclass
class Ready:
    """A machine that waits, paused, for someone to want it."""

    record: SandboxRecord
    running: Running


class Pool:
    """Ready machines by template digest, `pool_size` of each that was ever asked for."""

    def __init__(self, starts: Starts, context: Context) -> None:
        self._starts = starts
        self._context = context
        self._origins: dict[str, Origin] = {}
        self._ready: dict[str, deque[Ready]] = {}
        self._starting: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, origin: Origin, wish: Wish) -> Sandbox | None:
        """A ready machine turned into the wished sandbox, or None if there is none."""
        if not self._context.settings.pool_size:
            return None
        digest = self._know(origin)
        ready = self._ready[digest].popleft() if self._ready[digest] else None
        self._refill_soon(digest)
        if ready is None:
            return None
        try:
            return await self._hand_out(ready, origin.manifest, wish)
        except BelljarError as problem:
            log.warning("a machine started ahead was no good, so another is started: %s", problem.message)
            await self._discard(ready)
            return None
        except BaseException:
            await self._discard(ready)
            raise

    async def _hand_out(self, ready: Ready, manifest: Manifest, wish: Wish) -> Sandbox:
        await ready.running.machine.resume()
        if ready.running.link is None:
            raise SandboxGone("it lost its session")
        await thaw(ready.running.link, replace(ready.record, env=wish.env), manifest)
        # Only now: if this process is killed before, nobody finds a sandbox that is not what was asked for.
        if wish.ticket is not None:
            wish.ticket.claim(ready.record.id)
        change = partial(self._context.records.update_sandbox, ready.record.id, state="running", created_at=time.time())
        owner = {"workspace": wish.workspace, "persistent": wish.persistent, "ttl_s": wish.ttl_s}
        network = {"egress": wish.egress, "egress_secrets": wish.egress_secrets}
        own = {"env": wish.env, "metadata": wish.metadata, "expires_at": wish.expires_at}
        record = await asyncio.to_thread(change, **own, **owner, **network)
        return self._starts.hold(record, ready.running)

    async def fill(self, origin: Origin) -> None:
        """Wait until the pool for this template is full."""
        self._refill(self._know(origin))
        await asyncio.gather(*self._tasks)

    def _know(self, origin: Origin) -> str:
        """Remember what to refill from; machines of the same template's former bake are let go."""
        digest = origin.manifest.template_digest
        if digest not in self._origins:
            for stale in [key for key, old in self._origins.items() if old.manifest.template == origin.manifest.template]:
                self._run(self._retire(stale))
            self._origins[digest] = Origin(origin.saved, origin.manifest, origin.image.duplicate())
            self._ready[digest] = deque()
        return digest

    def _refill_soon(self, digest: str) -> None:
        """Not at once: starting machines takes the very cores that the one just handed out needs for its first answers."""
        if timer := self._timers.pop(digest, None):
            timer.cancel()
        delay = REFILL_AFTER_S if self._ready[digest] else 0
        self._timers[digest] = asyncio.get_running_loop().call_later(delay, self._refill, digest)

    def _refill(self, digest: str) -> None:
        if digest not in self._origins:
            return
        origin = self._origins[digest]
        missing = self._context.settings.pool_size - len(self._ready[digest]) - self._starting.get(digest, 0)
        for _ in range(missing):
            image = origin.image.duplicate()
            self._starting[digest] = self._starting.get(digest, 0) + 1
            self._run(self._add(origin.saved, origin.manifest, image))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="pool")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _retire(self, digest: str) -> None:
        self._origins.pop(digest).image.close()
        for ready in self._ready.pop(digest):
            await self._discard(ready)

    async def _add(self, saved: SavedMachine, manifest: Manifest, image: MemoryImage) -> None:
        try:
            origin = Origin(saved, manifest, image)
            record, machine, lock = await self._starts.prepare(origin, Wish({}, {}, None), manifest.disk_mib, state="pooled")
            try:
                link = await enliven(machine, record, manifest)
                await _warm_up(link, manifest)
                await machine.pause()
            except BaseException:
                await discard(self._context, record.id, machine, lock)
                raise
            ready = Ready(record, Running(machine, link, lock))
            if manifest.template_digest in self._ready:
                self._ready[manifest.template_digest].append(ready)
            else:
                await self._discard(ready)
        except BelljarError as problem:
            log.warning("a machine could not be started ahead: %s", problem.message)
        finally:
            image.close()
            self._starting[manifest.template_digest] -= 1

    async def _discard(self, ready: Ready) -> None:
        await ready.running.kill()
        await discard(self._context, ready.record.id, None, None)

    async def shed(self) -> bool:
        """End all ready machines, because somebody needs their room now. False if there are none."""
        ready = [machine for waiting in self._ready.values() for machine in waiting]
        for waiting in self._ready.values():
            waiting.clear()
        await asyncio.gather(*(self._discard(machine) for machine in ready))
        return bool(ready)

    async def aclose(self) -> None:
        """End all ready machines; nobody was told of them."""
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for digest in list(self._origins):
            await self._retire(digest)


async def _warm_up(link: Link, manifest: Manifest) -> None:
    await _drain(link, "process.start", {"argv": ["true"], "stdin": False, "background": False})
    for code in manifest.warm_cells:
        # Silent: it counts no cell and leaves no history, so that whoever gets the machine finds the context as it was.
        await _drain(link, "context.run", {"id": DEFAULT_ID, "code": code, "silent": True, "timeout_s": WARM_CELL_DEADLINE_S})


async def _drain(link: Link, op: str, params: dict[str, Any]) -> None:
    async with await link.open(op, params) as channel:
        channel.end()
        async for _ in channel:
            pass
