"""What a sandbox costs the host, from the kernel's own accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from belljar.errors import SandboxGone
from belljar.store.manifest import folder_bytes
from belljar.vm.memory import RamMapping, private_bytes


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is its own, in memory or swapped out: for a machine, an upper bound of what it has written."""
    try:
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError as problem:
        raise SandboxGone(f"the machine's process {pid} has ended") from problem
    return sum(int(words[1]) << 10 for words in lines if words and words[0] in ("RssAnon:", "VmSwap:"))


def _rollup(pid: int) -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) > 1}


def host_costs(ram: RamMapping, folder: Path) -> dict[str, Any]:
    """Memory that only this machine uses (all of it, and the guest's part), CPU time, and disk space. Bytes and seconds."""
    try:
        memory, private = _rollup(ram.pid), private_bytes(ram)
        fields = Path(f"/proc/{ram.pid}/stat").read_text().rpartition(")")[2].split()
        disk = folder_bytes(folder)
    except OSError as problem:
        raise SandboxGone(f"the machine's process {ram.pid} has ended") from problem
    ticks = int(fields[11]) + int(fields[12])
    return {
        "memory_private": memory.get("Private_Clean", 0) + memory.get("Private_Dirty", 0),
        "memory_shared_in_part": memory.get("Pss", 0),
        "guest_memory_private": private,
        "cpu_s": ticks / 100,
        "disk": disk,
        "pid": ram.pid,
    }
