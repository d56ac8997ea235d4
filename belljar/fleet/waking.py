"""From sleep to a running machine: the same start as any other, from what the sandbox has saved of itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from belljar.fleet.admission import check_room
from belljar.fleet.capturing import drop_sleep, sleep_origin
from belljar.fleet.context import Context
from belljar.fleet.launching import Running, check_restorable, enliven, host_trouble, start_machine, start_trouble
from belljar.store.db import SandboxRecord
from belljar.store.manifest import Manifest
from belljar.vm.finishing import finish
from belljar.vm.machine import Machine

if TYPE_CHECKING:
    from belljar.fleet.sandboxes import Fleet


async def wake_machine(
    context: Context,
    fleet: Fleet,
    record: SandboxRecord,
    lock: int,
    note: Callable[[], Awaitable[None]],
    hold: Callable[[Running], None],
) -> None:
    """Start a sleeping sandbox's machine. `note` writes down that it runs, `hold` takes it over. The lock is closed on failure."""
    folder = context.layout.sandbox(record.id)
    machine: Machine | None = None
    noted = held = False

    async def come_up(machine: Machine, manifest: Manifest) -> None:
        nonlocal noted, held
        # From here on the disk moves on and the saved memory is stale: the record must say so first.
        await note()
        noted = True
        hold(Running(machine, await enliven(machine, record, manifest), lock))
        held = True
        await asyncio.to_thread(drop_sleep, folder)

    try:
        async with fleet.queue.turns:
            await fleet.starts.when_there_is_room(lambda: asyncio.to_thread(_admit, context, record))
            origin = await sleep_origin(context, record)
            try:
                check_restorable(context, origin.manifest)
                with start_trouble(), host_trouble("the machine could not be started"):
                    machine = await start_machine(context, origin, record, folder)
                    await machine.wait_loaded()
                # To its end, whoever leaves meanwhile: in between it is neither asleep nor awake, and would be lost.
                await finish(come_up(machine, origin.manifest))
            finally:
                origin.image.close()
    except BaseException:
        if not held:
            if machine is not None:
                await machine.kill()
                if noted:
                    await fleet.bury(record.id, "it did not answer after it was woken")
            os.close(lock)
        raise
    finally:
        context.waking.pop(record.id, None)


def _admit(context: Context, record: SandboxRecord) -> None:
    """Take the room that this sandbox's memory needs; its record takes it over once it says so."""
    with context.admission:
        needed = (context.layout.sandbox(record.id) / "memory").stat().st_blocks * 512
        check_room(context, machines=1, memory_mib=record.memory_mib, new_bytes=needed, disk_bytes=0)
        context.waking[record.id] = record.memory_mib
