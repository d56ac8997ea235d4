"""The state of the whole host in numbers, of all workspaces together."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from belljar.fleet.admission import WITH_MEMORY, meminfo
from belljar.service.workspace import Parts


@dataclass(frozen=True)
class Figures:
    """Sizes in bytes."""

    states: Mapping[str, int]
    snapshots: int
    memory_promised: int
    memory_limit: int
    memory_available: int
    disk_promised: int
    disk_free: int
    starts_due: int
    events: Mapping[str, int]


async def take_figures(parts: Parts) -> Figures:
    return await asyncio.to_thread(_take, parts)


def _take(parts: Parts) -> Figures:
    records = parts.records.list_sandboxes()
    memory, disk = meminfo(), os.statvfs(parts.settings.home)
    return Figures(
        states=Counter(record.state for record in records),
        snapshots=len(parts.records.list_snapshots()),
        memory_promised=sum(record.memory_mib for record in records if record.state in WITH_MEMORY) << 20,
        memory_limit=int(memory["MemTotal"] * parts.settings.memory_oversubscription),
        memory_available=memory["MemAvailable"],
        disk_promised=sum(record.disk_mib for record in records if record.state != "dead") << 20,
        disk_free=disk.f_bavail * disk.f_frsize,
        starts_due=parts.fleet.queue.due,
        events=dict(parts.journal.counts),
    )
