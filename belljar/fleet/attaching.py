"""Becoming the only user of a machine that is there already, whoever started it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from belljar.errors import SandboxBusy, SandboxGone
from belljar.fleet.context import Context
from belljar.fleet.launching import ANSWER_DEADLINE_S, Running, take_lock
from belljar.store.db import SandboxRecord
from belljar.store.holding import find_holder
from belljar.vm.machine import Machine
from belljar.vm.rundir import RunDir

BUSY_WAIT_S = 5.0


async def wait_for_lock(context: Context, sandbox_id: str) -> int:
    """The sandbox's lock, as soon as nobody else has it. Whoever has it for long is named in the error."""
    waited = 0.0
    while True:
        try:
            return take_lock(context.layout.sandbox(sandbox_id))
        except SandboxBusy as busy:
            if waited >= BUSY_WAIT_S:
                raise _explained(context, sandbox_id, busy) from None
        waited += 0.05
        await asyncio.sleep(0.05)


def _explained(context: Context, sandbox_id: str, busy: SandboxBusy) -> SandboxBusy:
    """Where to go instead, if it is the server that has the sandbox."""
    server = find_holder(context.layout.server_lock)
    if server is None or server.pid != busy.details.get("pid"):
        return busy
    where = f" at {server.address}" if server.address else ""
    message = f"sandbox {sandbox_id} is in use by the server{where} (process {server.pid}); call it there, or stop the server"
    return SandboxBusy(message, **busy.details)


async def adopt_machine(record: SandboxRecord, folder: Path, lock: int) -> Running:
    """The machine that runs in `folder`, and a session with it unless it is paused. The lock is closed if that fails."""
    machine: Machine | None = None
    try:
        machine = await Machine.adopt(RunDir(folder))
        if machine.ended:
            raise SandboxGone(await machine.post_mortem())
        if record.state == "running" and machine.state == "paused":
            await machine.resume()  # its last owner died in the middle of a capture
        link = await machine.link(ANSWER_DEADLINE_S) if machine.state == "running" else None
    except BaseException:
        if machine is not None:
            await machine.release()
        os.close(lock)
        raise
    return Running(machine, link, lock)
