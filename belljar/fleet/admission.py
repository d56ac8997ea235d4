"""Whether a sandbox fits on this host, asked before anything of it exists."""

from __future__ import annotations

import os
from pathlib import Path

from belljar.errors import HostDiskShort, HostMemoryShort, InvalidInput, NotSupported
from belljar.fleet.checks import check_whole
from belljar.fleet.context import Context
from belljar.store.manifest import Manifest

# What an idle machine costs: QEMU itself, its translated code, and the pages it touches first. Measured by the benchmark.
IDLE_MACHINE_MIB = 48
WITH_MEMORY = ("creating", "pooled", "running", "paused")
MAX_FORK = 64
MAX_DISK_MIB = 4 << 20


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) > 1}


def check_room(
    context: Context, *, machines: int, memory_mib: int, new_bytes: int, disk_bytes: int, disk_mib: int = 0
) -> None:
    """Refuse what does not fit. `new_bytes` is memory that the operation itself allocates, `disk_bytes` what it writes, and
    `disk_mib` what it promises to each machine. Whoever relies on the answer holds `context.admission`."""
    settings = context.settings
    memory = meminfo()
    needed = new_bytes + (machines * IDLE_MACHINE_MIB << 20)
    free = memory["MemAvailable"] - (settings.host_memory_reserve_mib << 20)
    if needed > free:
        raise HostMemoryShort(
            f"{needed >> 20} MiB of memory are needed and {max(0, free) >> 20} MiB are free above the reserve of "
            f"{settings.host_memory_reserve_mib} MiB; kill or hibernate a sandbox, or lower host_memory_reserve_mib"
        )
    records = [record for record in context.records.list_sandboxes() if record.state != "dead"]
    running = {record.id: record.memory_mib for record in records if record.state in WITH_MEMORY}
    promised = sum({**context.waking, **running}.values()) + machines * memory_mib
    limit = int((memory["MemTotal"] >> 20) * settings.memory_oversubscription)
    if promised > limit:
        raise HostMemoryShort(
            f"running sandboxes would be promised {promised} MiB of memory, and the limit is {limit} MiB "
            f"({settings.memory_oversubscription:g} times this host's); kill or hibernate one, or raise memory_oversubscription"
        )
    check_disk(context, disk_bytes)
    _check_promised_disk(context, sum(record.disk_mib for record in records), machines * disk_mib)


def _check_promised_disk(context: Context, promised: int, more: int) -> None:
    status, factor = os.statvfs(context.layout.home), context.settings.disk_oversubscription
    limit = int((status.f_blocks * status.f_frsize >> 20) * factor)
    if more and promised + more > limit:
        raise HostDiskShort(
            f"sandboxes would be promised {promised + more} MiB of disk, and the limit is {limit} MiB ({factor:g} times the file "
            "system of the home); delete a sandbox, or raise disk_oversubscription"
        )


def check_disk(context: Context, needed: int) -> None:
    """Refuse to write `needed` bytes to the store if that would leave less than the reserve."""
    status = os.statvfs(context.layout.home)
    reserve = context.settings.host_disk_reserve_mib << 20
    free = status.f_bavail * status.f_frsize - reserve
    if needed > free:
        raise HostDiskShort(
            f"{max(1, needed >> 20)} MiB of disk are needed and {max(0, free) >> 20} MiB are free above the reserve of "
            f"{context.settings.host_disk_reserve_mib} MiB; remove snapshots or sandboxes, or lower host_disk_reserve_mib"
        )


def check_shape(manifest: Manifest, vcpus: int | None, memory_mib: int | None, disk_mib: int | None) -> int:
    """The disk size to use. CPU and memory are part of what was saved; a disk may grow, and not shrink."""
    fixed = (("vcpus", vcpus, manifest.vcpus, 1, 64), ("memory_mib", memory_mib, manifest.memory_mib, 128, 1 << 20))
    for name, wanted, saved, low, high in fixed:
        if wanted is not None and check_whole(wanted, name, low, high) != saved:
            raise NotSupported(
                f"{name} is {saved} in the saved memory of {manifest.template!r} and cannot be changed to {wanted} at create; "
                f"change it in the template's recipe and build that"
            )
    if disk_mib is None:
        return manifest.disk_mib
    if check_whole(disk_mib, "disk_mib", 1, MAX_DISK_MIB) < manifest.disk_mib:
        raise NotSupported(
            f"the disk of {manifest.template!r} has {manifest.disk_mib} MiB and can grow but not shrink to {disk_mib}"
        )
    return disk_mib


def check_fork_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_FORK:
        raise InvalidInput(f"a sandbox is forked into 1 to {MAX_FORK} children at a time, not {count!r}")
    return count
