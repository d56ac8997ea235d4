"""How a new sandbox comes to be: admission, record and folder, a machine in it, its first answer. All of it or nothing."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from belljar.errors import HostMemoryShort
from belljar.fleet.admission import check_room
from belljar.fleet.context import Context, Origin, Ticket, Wish
from belljar.fleet.launching import Running, discard, enliven, host_trouble, lay_out, start_machine, start_trouble, take_lock
from belljar.fleet.pool import Pool
from belljar.fleet.queueing import StartQueue
from belljar.fleet.sandbox import Sandbox
from belljar.store.db import SandboxRecord
from belljar.store.manifest import Manifest
from belljar.vm.machine import Machine

T = TypeVar("T")


class Starts:
    """New sandboxes, from whatever origin. `hold` makes a handle of one that runs."""

    def __init__(self, context: Context, queue: StartQueue, hold: Callable[[SandboxRecord, Running], Sandbox]) -> None:
        self._context = context
        self._queue = queue
        self.hold = hold
        self.pool = Pool(self, context)

    async def launch(self, origin: Origin, wish: Wish, disk_mib: int) -> Sandbox:
        """In its turn, start a machine and wait for its first answer; on failure nothing of it is left."""
        async with self._queue.turns:
            with start_trouble():
                return await self._launch(origin, wish, disk_mib)

    async def _launch(self, origin: Origin, wish: Wish, disk_mib: int) -> Sandbox:
        record, machine, lock = await self.when_there_is_room(lambda: self.prepare(origin, wish, disk_mib, state="creating"))
        try:
            link = await enliven(machine, record, origin.manifest)
            record = await asyncio.to_thread(self._context.records.update_sandbox, record.id, state="running")
        except BaseException:
            await discard(self._context, record.id, machine, lock)
            raise
        return await trusting(self.hold(record, Running(machine, link, lock)))

    async def when_there_is_room(self, work: Callable[[], Awaitable[T]]) -> T:
        """Machines that were started ahead give way to those that are wanted."""
        try:
            return await work()
        except HostMemoryShort:
            if not await self.pool.shed():
                raise
        return await work()

    async def prepare(self, origin: Origin, wish: Wish, disk_mib: int, *, state: str) -> tuple[SandboxRecord, Machine, int]:
        """Record, folder and a paused machine in it, for one new sandbox."""
        context = self._context
        record = await asyncio.to_thread(self._admit, origin, wish, disk_mib, state)
        machine: Machine | None = None
        lock: int | None = None
        try:
            folder = context.layout.sandbox(record.id)
            with host_trouble("the sandbox could not be laid out"):
                folder.mkdir(mode=0o700)
                lock = take_lock(folder)
                await asyncio.to_thread(lay_out, origin, folder, disk_mib)
                machine = await start_machine(context, origin, record, folder)
        except BaseException:
            await discard(context, record.id, machine, lock)
            raise
        return record, machine, lock

    def _admit(self, origin: Origin, wish: Wish, disk_mib: int, state: str) -> SandboxRecord:
        """The record of a machine that there is room for."""
        with self._context.admission:
            check_room(
                self._context,
                machines=1,
                memory_mib=origin.manifest.memory_mib,
                new_bytes=0,
                disk_bytes=origin.saved.disk.stat().st_blocks * 512,
                disk_mib=disk_mib,
            )
            return self._insert(origin.manifest, wish, disk_mib, state)

    def _insert(self, manifest: Manifest, wish: Wish, disk_mib: int, state: str) -> SandboxRecord:
        record = SandboxRecord(
            id=f"sb-{secrets.token_hex(8)}",
            template=manifest.template,
            template_digest=manifest.template_digest,
            state=state,
            created_at=time.time(),
            vcpus=manifest.vcpus,
            memory_mib=manifest.memory_mib,
            disk_mib=disk_mib,
            origin_snapshot=wish.origin_snapshot,
            parent=wish.parent,
            expires_at=wish.expires_at,
            metadata=wish.metadata,
            env=wish.env,
            workspace=wish.workspace,
            persistent=wish.persistent,
            ttl_s=wish.ttl_s,
            egress=wish.egress,
            egress_secrets=wish.egress_secrets,
        )
        if wish.ticket is not None:
            wish.ticket.claim(record.id)
        return self._context.records.insert_sandbox(record, uids=self._context.uids)

    async def launch_children(
        self, parent: SandboxRecord, origin: Origin, count: int, metadata: Mapping[str, str], ticket: Ticket | None = None
    ) -> list[Sandbox]:
        """All children, or none: if one cannot be started, the others are ended again."""
        wish = Wish(
            parent.env,
            {**parent.metadata, **metadata},
            parent.expires_at,
            parent=parent.id,
            ttl_s=parent.ttl_s,
            workspace=parent.workspace,
            persistent=parent.persistent,
            ticket=ticket,
            egress=parent.egress,
            egress_secrets=parent.egress_secrets,
        )
        starts = [asyncio.create_task(self.launch(origin, wish, parent.disk_mib)) for _ in range(count)]
        try:
            return await asyncio.gather(*starts)
        except BaseException:
            await _end_children(starts)
            raise


async def _end_children(starts: list[asyncio.Task[Sandbox]]) -> None:
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    children = [child for child in outcomes if isinstance(child, Sandbox)]
    await asyncio.gather(*(child.kill() for child in children), return_exceptions=True)


async def trusting(sandbox: Sandbox) -> Sandbox:
    """A sandbox with secrets is of no use before it trusts the authority that speaks for their hosts."""
    try:
        await sandbox.egress.ready()
    except BaseException:
        await sandbox.kill()
        raise
    return sandbox
