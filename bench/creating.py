"""Create to first answer: without and with machines started ahead, against a cold boot and against a bare QEMU."""

from __future__ import annotations

import asyncio
import time

from belljar.fleet.sandboxes import Fleet
from belljar.store.db import Records
from bench.lab import Lab, answered, milliseconds, say
from bench.results import Result, Series
from bench.yardsticks import BareQemu, cold_boot

POOL_SIZE = 4
REFILL_DEADLINE_S = 120.0


async def creating(lab: Lab) -> Result:
    rounds, boots = lab.count(40, 8), lab.count(5, 2)
    cold = Series("cold boot → first `true`", "ms", [])
    bare = Series("bare QEMU, state loaded", "ms", [])
    plain = Series("create → first `true`", "ms", [])
    made = Series("create → answered its thaw", "ms", [])
    made_ahead = Series(f"create → answered its thaw, pool of {POOL_SIZE}", "ms", [])
    pooled = Series(f"create → first `true`, pool of {POOL_SIZE}", "ms", [])
    yardstick = BareQemu(lab)
    await _create(lab, lab.fleet)  # the first one loads what all others share
    async with lab.pooled_fleet(POOL_SIZE) as ahead:
        await _create(lab, ahead)
        for number in range(rounds):
            if number % max(1, rounds // boots) == 0 and len(cold.samples) < boots:
                cold.samples.append(await cold_boot(lab))
            bare.samples.append(await yardstick.start())
            created, first = await _create(lab, lab.fleet)
            made.samples.append(created)
            plain.samples.append(first)
            await _until_full(lab)
            created, first = await _create(lab, ahead)
            made_ahead.samples.append(created)
            pooled.samples.append(first)
            await _until_full(lab)  # so that starting replacements does not slow the next samples
            figures = ", ".join(f"{series.samples[-1]:.0f}" for series in (bare, plain, pooled))
            say(f"  round {number + 1} of {rounds}: bare, create, pooled: {figures} ms")
    result = Result("Create to first answer", [cold, bare, plain, made, pooled, made_ahead])
    result.ratio("create → first `true`, against a cold boot", plain, cold, 0.05)
    result.ratio("create from a pool → first `true`, against a cold boot", pooled, cold, 0.05)
    result.ratio("create → first answer, against a bare QEMU that loads a state", made, bare, 2.5)
    result.ratio("create → first `true`, against a bare QEMU that loads a state", plain, bare, 2.5)
    result.ratio("create from a pool → first answer, against a bare QEMU that loads a state", made_ahead, bare, 2.5)
    result.ratio("create from a pool → first `true`, against a bare QEMU that loads a state", pooled, bare, 2.5)
    result.notes.append(
        "A machine taken from the pool is replaced at the pool's own time, on the same cores; that is part of the figure."
    )
    return result


async def _create(lab: Lab, fleet: Fleet) -> tuple[float, float]:
    """Milliseconds until created, and until the first program had run."""
    began = time.perf_counter()
    sandbox = await lab.create(fleet)
    try:
        created = milliseconds(began)
        await answered(sandbox)
        return created, milliseconds(began)
    finally:
        await sandbox.kill()


async def _until_full(lab: Lab) -> None:
    records = Records(lab.layout.database)
    try:
        async with asyncio.timeout(REFILL_DEADLINE_S):
            while not _full(records, lab.manifest.template_digest):  # noqa: ASYNC110  the records are all that shows it
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)
    finally:
        records.close()


def _full(records: Records, digest: str) -> bool:
    waiting = records.list_sandboxes(states=("pooled",))
    return sum(record.template_digest == digest for record in waiting) >= POOL_SIZE
