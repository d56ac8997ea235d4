"""Pause and resume: how long they take, and that each is one command to the VMM."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from belljar.vm.machine import Machine
from belljar.vm.qmp import Qmp
from belljar.vm.rundir import RunDir
from bench.lab import Lab, answered, milliseconds
from bench.results import Result, Series, Verdict


async def pausing(lab: Lab) -> Result:
    asked = Series("query-status round trip", "ms", [])
    stopped = Series("machine pause", "ms", [])
    continued = Series("machine resume", "ms", [])
    paused = Series("sandbox pause (with its record)", "ms", [])
    resumed = Series("sandbox resume (with its record and the guest's clock)", "ms", [])
    folder, parts = lab.parts("pausing")
    machine = await Machine.restore(RunDir(folder), parts, lab.facts, lab.image, lab.template.devices)
    try:
        await machine.resume()
        async with lab.sandbox() as sandbox:
            await answered(sandbox)
            for _ in range(lab.count(100, 20)):
                asked.samples.append(await _timed(machine.vmm_status))
                stopped.samples.append(await _timed(machine.pause))
                continued.samples.append(await _timed(machine.resume))
                paused.samples.append(await _timed(sandbox.pause))
                resumed.samples.append(await _timed(sandbox.resume))
            pause_commands = await _commands(sandbox.pause)
            resume_commands = await _commands(sandbox.resume)
    finally:
        await machine.kill()
    result = Result("Pause and resume", [asked, stopped, continued, paused, resumed])
    result.verdicts.append(Verdict("commands to the VMM for a pause", pause_commands, "round trips", 1))
    result.verdicts.append(Verdict("commands to the VMM for a resume", resume_commands, "round trips", 1))
    result.ratio("pause of a machine, against a query-status", stopped, asked)
    result.ratio("resume of a machine, against a query-status", continued, asked)
    return result


async def _timed(move: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await move()
    return milliseconds(began)


async def _commands(move: Callable[[], Awaitable[object]]) -> int:
    """How many monitor commands a move sends."""
    sent = 0
    run = Qmp.run

    async def counting(qmp: Qmp, command: str, *args: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        return await run(qmp, command, *args, **options)

    with patch.object(Qmp, "run", counting):
        await move()
    return sent
