"""What the machine has and uses, as the guest sees it; and waiting until it has come to rest."""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH208

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any, Final

from belljar.guest.accounts import Account
from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.params import Params

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LOOK_EVERY_S: Final = 0.25
_QUIET: Final = 0.1  # share of processor time that counts as rest
_SETTLE_AT_MOST_S: Final = 10.0
_ROOT: Final = Account("root", 0, 0, (), "/", "")


def _processor_times() -> tuple[float, float, float]:
    """User, system and idle seconds since boot."""
    fields = [int(field) / _TICKS for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return fields[0] + fields[1], fields[2] + fields[5] + fields[6], fields[3] + fields[4]


def _collect() -> dict[str, Any]:
    user, system, idle = _processor_times()
    memory = {
        name: int(rest.split()[0]) * 1024
        for name, rest in (line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    }
    disk = os.statvfs("/")
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    return {
        "cpu": {
            "count": os.cpu_count() or 1,
            "user_s": user,
            "system_s": system,
            "idle_s": idle,
            "load1": float(Path("/proc/loadavg").read_text().split()[0]),
        },
        "memory": {
            "total": memory["MemTotal"],
            "available": memory["MemAvailable"],
            "used": memory["MemTotal"] - memory["MemAvailable"],
        },
        "disk": {"total": total, "used": (disk.f_blocks - disk.f_bfree) * disk.f_frsize, "free": free},
        "processes": sum(entry.isdecimal() for entry in os.listdir("/proc")),
        "uptime_s": float(Path("/proc/uptime").read_text().split()[0]),
    }


async def stats(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    return await context.workers.run(_ROOT, _collect)


async def settle(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    """Before a snapshot that many will start from: everything on disk, no work half done, the next start prepared."""
    context.launcher.prepare()
    gc.collect()
    gc.freeze()
    await context.workers.run(_ROOT, os.sync)
    for _ in range(int(_SETTLE_AT_MOST_S / _LOOK_EVERY_S)):
        before = _processor_times()
        await asyncio.sleep(_LOOK_EVERY_S)
        user, system, idle = (now - then for now, then in zip(_processor_times(), before, strict=True))
        if user + system <= _QUIET * (user + system + idle):
            break
    return {}


OPERATIONS: Final = {"stats": stats, "settle": settle}
