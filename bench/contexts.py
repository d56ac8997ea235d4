"""Code contexts: a trivial cell, the first DataFrame after a create, and a thousand cells in one context."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from pathlib import Path

from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.templates.bake import build_template
from bench.lab import TIME_TO_LIVE_S, Lab, answered, milliseconds, say
from bench.results import Result, Series, Verdict

TEMPLATE = "python-data"
DESCRIBE = 'import pandas as pd\npd.DataFrame({"a": [1, 2, 3], "b": [4.0, 5.0, 6.0]}).describe()'
POOL_SIZE = 2
REFILL_DEADLINE_S = 300.0
CELLS = 1000
# The agent is the oldest child of PID 1 with the package's name.
AGENT_KIB = "sudo awk '/VmRSS/ {print $2}' /proc/$(pgrep -P 1 -o -f belljar)/status"


async def contexts(lab: Lab) -> Result:
    await build_template(lab.settings, TEMPLATE, say)
    result = Result("Code contexts")
    await _trivial(lab, result)
    await _first_frame(lab, result)
    await _many(lab, result)
    return result


async def _trivial(lab: Lab, result: Result) -> None:
    """`1 + 1` against an `exec` of nothing, in turn, in one sandbox that has done both before."""
    nothing, cell = Series("`true` run by the agent", "ms", []), Series("cell `1 + 1`", "ms", [])
    async with lab.sandbox() as sandbox:
        for _ in range(20):
            await _timed_true(sandbox)
            await _timed_cell(sandbox)
        for _ in range(lab.count(200, 40)):
            nothing.samples.append(await _timed_true(sandbox))
            cell.samples.append(await _timed_cell(sandbox))
    say(f"  cell {cell.p50:.1f} ms, exec {nothing.p50:.1f} ms")
    result.series += [nothing, cell]
    result.ratio("a trivial cell, against an exec of nothing", cell, nothing, 3)


async def _timed_true(sandbox: Sandbox) -> float:
    began = time.perf_counter()
    await answered(sandbox)
    return milliseconds(began)


async def _timed_cell(sandbox: Sandbox) -> float:
    began = time.perf_counter()
    execution = await sandbox.run_code("1 + 1")
    took = milliseconds(began)
    assert execution.text == "2", execution
    return took


async def _first_frame(lab: Lab, result: Result) -> None:
    """Create to the first `describe()`, against a fresh process on the host that only imports pandas; in turn."""
    host = Series("fresh `python3 -c 'import pandas'` on the host", "ms", [])
    plain = Series("create → first `DataFrame.describe()`", "ms", [])
    pooled = Series(f"create → first `DataFrame.describe()`, pool of {POOL_SIZE}", "ms", [])
    await asyncio.to_thread(_import_pandas)
    await _describe(lab, lab.fleet)
    async with lab.pooled_fleet(POOL_SIZE) as ahead:
        await _describe(lab, ahead)
        for number in range(lab.count(30, 6)):
            await _until_full(ahead)
            host.samples.append(await asyncio.to_thread(_import_pandas))
            plain.samples.append(await _describe(lab, lab.fleet))
            pooled.samples.append(await _describe(lab, ahead))
            say(f"  round {number + 1}: " + ", ".join(f"{s.samples[-1]:.0f}" for s in (host, plain, pooled)) + " ms")
    result.series += [host, plain, pooled]
    for name, series in (("create", plain), ("create from a pool", pooled)):
        result.ratio(f"{name} → first describe(), against importing pandas on the host (p50)", series, host, 0.25)
        result.verdicts.append(Verdict(f"{name} → first describe(), the same at p99", series.p99 / host.p99, "×", 0.5))


def _import_pandas() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import pandas"], check=True)
    return milliseconds(began)


async def _describe(lab: Lab, fleet: Fleet) -> float:
    began = time.perf_counter()
    sandbox = await fleet.create(TEMPLATE, metadata=lab.tag, ttl_s=TIME_TO_LIVE_S)
    try:
        execution = await sandbox.run_code(DESCRIBE)
        took = milliseconds(began)
        assert execution.html, execution
        return took
    finally:
        await sandbox.kill()


async def _until_full(fleet: Fleet) -> None:
    async with asyncio.timeout(REFILL_DEADLINE_S):
        await fleet.filled(TEMPLATE)
    await asyncio.sleep(0.1)


async def _many(lab: Lab, result: Result) -> None:
    """Memory of the agent and of this process, before and after a thousand cells."""
    cells = lab.count(CELLS, CELLS // 5)
    async with lab.sandbox() as sandbox:
        context = await sandbox.contexts.create()
        for _ in range(100):
            await context.run("[n for n in range(100)]; print('x' * 100)")
        before = await _agent_kib(sandbox), _own_kib()
        for _ in range(cells):
            await context.run("[n for n in range(100)]; print('x' * 100)")
        after = await _agent_kib(sandbox), _own_kib()
    for who, was, now in zip(("the agent", "the host's process"), before, after, strict=True):
        result.verdicts.append(Verdict(f"{who} grew over {cells} cells by", max(0, now - was) / 1024, "MiB", 2))


async def _agent_kib(sandbox: Sandbox) -> int:
    return int((await sandbox.processes.run(AGENT_KIB)).stdout)


def _own_kib() -> int:
    gc.collect()
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
