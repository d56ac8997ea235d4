"""Fork of a sandbox that holds much live data: the first child, each further child, and what children do not share."""

from __future__ import annotations

import time

from belljar.fleet.sandbox import Sandbox
from belljar.vm.memory import private_bytes
from bench.lab import Lab, answered, milliseconds, say
from bench.results import Result, Series, Verdict
from bench.yardsticks import Copies

DATA_MIB = 500
FURTHER = 3
READY = "/workspace/ready"

# No two pages are alike, and none is empty: nothing about them can be shared or skipped.
HOLDER = f"""
import os, time
piece = os.urandom(1 << 20)
held = bytearray({DATA_MIB} << 20)
for n in range({DATA_MIB}):
    held[n << 20 : (n + 1) << 20] = piece[8 * n :] + piece[: 8 * n]
open("{READY}", "w").write("ready")
while True:
    time.sleep(3600)
"""


async def forking(lab: Lab) -> Result:
    copies = Copies(DATA_MIB << 20)
    array = Series(f"copy {DATA_MIB} MiB into fresh memory (numpy)", "ms", [])
    memfd = Series(f"copy {DATA_MIB} MiB into a memfd (pwrite)", "ms", [])
    created = Series("create → first `true`", "ms", [])
    returned = Series("fork into 1 → the child has answered its thaw", "ms", [])
    first = Series("fork into 1 → first `true`", "ms", [])
    many = Series(f"fork into {1 + FURTHER} → all answered", "ms", [])
    further = Series("each further child", "ms", [])
    unshared = Series("guest memory that a fresh child does not share", "MiB", [])
    held = Series("guest memory that the parent does not share", "MiB", [])
    async with lab.sandbox() as parent:
        await _hold(parent)
        for number in range(lab.count(8, 3)):
            array.samples.append(copies.into_array())
            memfd.samples.append(copies.into_memfd())
            created.samples.append(await _create(lab))
            held.samples.append(private_bytes(lab.ram(parent)) / 2**20)
            answered_at, done_at = await _fork(lab, parent, 1, unshared)
            returned.samples.append(answered_at)
            first.samples.append(done_at)
            many.samples.append((await _fork(lab, parent, 1 + FURTHER, unshared))[1])
            further.samples.append((many.samples[-1] - first.samples[-1]) / FURTHER)
            say(f"  round {number + 1}: first child {first.samples[-1]:.0f}, further {further.samples[-1]:.0f} ms")
    series = [array, memfd, created, returned, first, many, further, unshared, held]
    result = Result(f"Fork of a sandbox with {DATA_MIB} MiB of live data", series)
    for yardstick, where in ((array, "fresh memory"), (memfd, "a memfd")):
        result.ratio(f"fork, first child answers, against copying {DATA_MIB} MiB into {where}", returned, yardstick, 3)
        result.ratio(f"fork, first child's first `true`, against copying {DATA_MIB} MiB into {where}", first, yardstick, 3)
    result.ratio("each further child, against a create", further, created, 1.2)
    result.verdicts.append(Verdict("guest memory that a fresh child does not share (p99)", unshared.p99, "MiB", 10))
    return result


async def _hold(parent: Sandbox) -> None:
    await parent.processes.start(["python3", "-c", HOLDER], background=True)
    waited = await parent.processes.run(f"until [ -s {READY} ]; do sleep 0.2; done", timeout_s=180)
    assert waited.exit_code == 0, waited


async def _create(lab: Lab) -> float:
    began = time.perf_counter()
    async with lab.sandbox() as sandbox:
        await answered(sandbox)
        return milliseconds(began)


async def _fork(lab: Lab, parent: Sandbox, count: int, unshared: Series) -> tuple[float, float]:
    """Milliseconds until all children had answered their thaw, and until each had run a program."""
    began = time.perf_counter()
    children = await parent.fork(count)
    returned = milliseconds(began)
    try:
        for child in children:
            await answered(child)
        took = milliseconds(began)
        unshared.samples.extend(private_bytes(lab.ram(child)) / 2**20 for child in children)
        return returned, took
    finally:
        await lab.kill_all(children)
