"""Fifty sandboxes at once: all of them answer, and how many a second that makes."""

from __future__ import annotations

import asyncio
import time

from belljar.fleet.sandbox import Sandbox
from bench.lab import Lab, answered, milliseconds
from bench.results import Result, Series, Verdict


async def bursting(lab: Lab) -> Result:
    count = lab.count(50, 20)
    latency = Series("asked → first `true`, all at once", "ms", [])
    sandboxes: list[Sandbox] = []

    async def one() -> None:
        began = time.perf_counter()
        sandboxes.append(sandbox := await lab.create())
        await answered(sandbox)
        latency.samples.append(milliseconds(began))

    async with lab.sandbox() as warm:  # the template's memory is loaded before the clock starts
        await answered(warm)
    began = time.perf_counter()
    try:
        outcomes = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
        took_s = milliseconds(began) / 1000
    finally:
        ending = time.perf_counter()
        await lab.kill_all(sandboxes)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    result = Result(f"A burst of {count} creates", [latency] if latency.samples else [])
    result.verdicts += [
        Verdict(f"failures among {count} created in a burst", len(failures), "failures", 0),
        Verdict("throughput of the burst", len(latency.samples) / took_s, "sandboxes/s"),
    ]
    result.notes.append(f"All had answered after {took_s:.1f} s; all were ended {milliseconds(ending) / 1000:.1f} s later.")
    result.notes += sorted({f"failure: {type(problem).__name__}: {problem}" for problem in failures})
    return result
