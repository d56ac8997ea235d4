"""What a machine is given: plain frozen values, checked by whoever makes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Accelerator = Literal["kvm", "tcg"]

PAGE = 4096
AGENT_PORT = "org.belljar.agent"
# The emulated CPU: all that the emulator can do, but for the hint that byte-wise string instructions are fast. An emulator runs
# them byte by byte, and the guest's kernel and C library would use them for every copy.
EMULATED_CPU = "max,-erms,-fsrm"


@dataclass(frozen=True)
class Shape:
    """The size of a machine. CPU and memory are fixed in a snapshot; the disk may only grow."""

    vcpus: int
    memory_mib: int

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20


@dataclass(frozen=True)
class Boot:
    """What a cold boot needs; a restore needs none of it."""

    kernel: Path
    initrd: Path
    extra: str = ""


@dataclass(frozen=True)
class Fingerprint:
    """What can restore a snapshot: device state is only understood by the same devices of the same QEMU."""

    qemu: str
    accelerator: str
    cpu: str
    devices: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def mismatch(self, other: Fingerprint) -> str | None:
        """The first difference in words, or None."""
        for field, mine in asdict(self).items():
            theirs = getattr(other, field)
            if mine != theirs:
                return f"{field} is {theirs!r} here, the snapshot was made with {mine!r}"
        return None
