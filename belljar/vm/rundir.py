"""The directory of a running machine: its sockets, its log, and the record by which a later process finds it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from belljar.vm.process import Identity, start_time


@dataclass(frozen=True)
class RunDir:
    """The files of one running machine."""

    path: Path

    @property
    def monitor(self) -> Path:
        return self.path / "qmp.sock"

    @property
    def agent(self) -> Path:
        return self.path / "agent.sock"

    @property
    def log(self) -> Path:
        return self.path / "qemu.log"

    @property
    def record(self) -> Path:
        return self.path / "machine.json"


@dataclass(frozen=True)
class MachineRecord:
    """What the run directory says of the process that runs there."""

    pid: int
    started: int
    vcpus: int
    memory_mib: int
    ram_fd: int
    ram_dev: int
    ram_ino: int

    @property
    def ram_identity(self) -> tuple[int, int]:
        return self.ram_dev, self.ram_ino

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.started)

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


def read_record(folder: Path) -> MachineRecord | None:
    """The record in a run directory; None if there is none that can be read."""
    try:
        record = json.loads(RunDir(folder).record.read_text())
        return MachineRecord(**{name: int(value) for name, value in record.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_record(run: RunDir, record: MachineRecord) -> None:
    """In one visible step: whoever reads finds all of it or nothing."""
    scratch = run.record.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(record)))
    scratch.replace(run.record)
