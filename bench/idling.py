"""Host memory of idle sandboxes, side by side: everything that only they use, and the image they share, once."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from belljar.fleet.admission import meminfo
from belljar.fleet.sandbox import Sandbox
from bench.lab import Lab, answered, say
from bench.results import Result, Series, Verdict

SETTLE_S = 2.0
WATCH_S = 5.0
MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """What one sandbox alone uses, in bytes."""

    vmm: int
    guest: int
    helper: int
    tables: int

    @property
    def total(self) -> int:
        return self.vmm + self.guest + self.helper + self.tables


async def idling(lab: Lab) -> Result:
    result = Result("Host memory of idle sandboxes")
    image = lab.template.memory.stat().st_blocks * 512
    sandboxes: list[Sandbox] = []
    before = meminfo()["MemAvailable"]
    own_before = _resident()
    try:
        for count in (1, 5, 10) if lab.quick else (1, 10, 50):
            while len(sandboxes) < count:
                sandboxes.append(await lab.create())
                await answered(sandboxes[-1])
            await asyncio.sleep(SETTLE_S)
            result.verdicts.append(
                Verdict(f"CPU of an idle sandbox, {count} side by side", await _cpu(lab, sandboxes), "% of a core")
            )
            costs = [read_cost(lab.pid(sandbox)) for sandbox in sandboxes]
            _note(result, count, costs, image, before - meminfo()["MemAvailable"], _resident() - own_before)
    finally:
        await lab.kill_all(sandboxes)
    return result


async def _cpu(lab: Lab, sandboxes: list[Sandbox]) -> float:
    """Mean share of one core, over a while in which nobody asks them anything."""
    pids = [lab.pid(sandbox) for sandbox in sandboxes]
    before = sum(map(_ticks, pids))
    await asyncio.sleep(WATCH_S)
    return (sum(map(_ticks, pids)) - before) / os.sysconf("SC_CLK_TCK") / WATCH_S / len(pids) * 100


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _note(result: Result, count: int, costs: list[Cost], image: int, missing: int, own: int) -> None:
    each = Series(f"private memory of each of {count}", "MiB", [cost.total / MIB for cost in costs])
    result.series.append(each)
    mean = Cost(*(sum(getattr(cost, part) for cost in costs) // count for part in ("vmm", "guest", "helper", "tables")))
    shared = (mean.total + image / count) / MIB
    result.verdicts += [
        Verdict(f"host memory of an idle sandbox, {count} side by side", mean.total / MIB, "MiB", 60),
        Verdict(f"the same with its share of the template's image ({image / MIB:.0f} MiB once)", shared, "MiB"),
    ]
    line = (
        f"{count} side by side, mean: QEMU {mean.vmm / MIB:.1f}, guest pages {mean.guest / MIB:.1f}, jail helper "
        f"{mean.helper / MIB:.1f}, page tables {mean.tables / MIB:.1f} MiB. Cross-check: MemAvailable fell by "
        f"{missing / MIB / count:.1f} MiB per sandbox, image included (whatever else runs here counts too); "
        f"this process grew by {own / MIB / count:.1f}."
    )
    result.notes.append(line)
    say(f"  {line}")


def read_cost(pid: int) -> Cost:
    """A VMM's own memory. Pages of the shared image are counted apart, even where only one machine maps them yet."""
    vmm = guest = 0
    in_ram = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            in_ram = "memfd:belljar-ram" in line
        elif in_ram and name == "Anonymous:":
            guest += _kib(rest)
        elif not in_ram and name in ("Private_Clean:", "Private_Dirty:"):
            vmm += _kib(rest)
    helper, tables = 0, _status(pid, "VmPTE")
    parent = _parent(pid)
    if Path(f"/proc/{parent}/comm").read_text().strip() == "bwrap":
        helper = _private(parent) + _status(parent, "VmPTE")
    return Cost(vmm, guest, helper, tables)


def _kib(text: str) -> int:
    return int(text.split()[0]) << 10


def _fields(path: str) -> dict[str, str]:
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return {name: rest.strip() for name, _, rest in lines}


def _status(pid: int, field: str) -> int:
    return _kib(_fields(f"/proc/{pid}/status")[field])


def _parent(pid: int) -> int:
    return int(_fields(f"/proc/{pid}/status")["PPid"])


def _private(pid: int) -> int:
    rollup = _fields(f"/proc/{pid}/smaps_rollup")
    return _kib(rollup["Private_Clean"]) + _kib(rollup["Private_Dirty"])


def _resident() -> int:
    return _kib(_fields("/proc/self/status")["VmRSS"])
