"""Commands run in this process, against a fleet of one whose sandbox is a real agent on the host."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.cli import copying, executing, forwarding, opening, running, sandboxes, snapshots
from belljar.cli.main import build_parser
from belljar.egress.outlet import Ground, Outlet
from belljar.errors import SandboxNotFound
from belljar.fleet.egress import DenialWatch
from belljar.fleet.files import Files
from belljar.fleet.ports import Ports
from belljar.fleet.processes import Processes
from belljar.store.db import SandboxRecord, SnapshotRecord
from belljar.vm.link import Link
from tests.guest.conftest import Guest, guest, work

__all__ = ["guest", "work"]

Command = Callable[..., Awaitable[int]]


class StubSandbox:
    """Files and processes are real; moves are only written down."""

    def __init__(self, fleet: StubFleet, name: str, guest: Guest | None) -> None:
        async def link() -> Link:
            assert guest is not None
            return guest.link

        self.id, self._fleet = name, fleet
        self.processes, self.files, self.ports = Processes(link), Files(link), Ports(link)
        self.egress = SimpleNamespace(watch=lambda: DenialWatch(fleet.outlet))
        self.record = SandboxRecord(name, "base", "d" * 64, "running", 1.0, 2, 2048, 10240, metadata={"k": "v\x1b[31m"})

    def __getattr__(self, move: str) -> Callable[..., Awaitable[Any]]:
        async def note(*args: Any, **wishes: Any) -> Any:
            self._fleet.log.append((self.id, move, args, wishes))
            if move == "fork":
                return [StubSandbox(self._fleet, f"child-{n}", None) for n in range(args[0])]
            if move == "snapshot":
                return SnapshotRecord("snap-1", self.id, "base", "d" * 64, 1.0, 5 << 20)
            return {"guest": {"memory": {"total": 1, "used": 0.5}}, "host": {}} if move == "stats" else None

        return note


@dataclass
class StubFleet:
    guest: Guest | None
    log: list[tuple[Any, ...]] = field(default_factory=list)
    outlet: Outlet = field(default_factory=lambda: Outlet(Ground()))

    async def create(self, template: str = "base", **wishes: Any) -> StubSandbox:
        self.log.append(("create", template, wishes))
        return StubSandbox(self, "sb-1", self.guest)

    async def get(self, name: str) -> StubSandbox:
        if name != "sb-1":
            raise SandboxNotFound(f"no sandbox {name!r}")
        return StubSandbox(self, name, self.guest)

    async def list(self, metadata: dict[str, str] | None = None) -> builtins.list[SandboxRecord]:
        self.log.append(("list", metadata))
        return [StubSandbox(self, "sb-1", None).record]

    async def kill(self, name: str) -> None:
        self.log.append((name, "kill", (), {}))

    async def snapshots(self) -> builtins.list[SnapshotRecord]:
        return [SnapshotRecord("snap-1", "sb-0", "base", "d" * 64, 1.0, 5 << 20)]

    async def remove_snapshot(self, name: str) -> None:
        self.log.append((name, "rm", (), {}))

    swept = SimpleNamespace(expired=["sb-9"])

    async def sweep(self) -> SimpleNamespace:
        return SimpleNamespace(expired=[])


def _install(fleet: StubFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_fleet() -> AsyncIterator[StubFleet]:
        yield fleet

    for module in (opening, copying, executing, forwarding, running, sandboxes, snapshots):
        monkeypatch.setattr(module, "open_fleet", open_fleet)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: PTH123, SIM115


@pytest.fixture
def stub_fleet(monkeypatch: pytest.MonkeyPatch) -> StubFleet:
    """A fleet without any agent, for commands that only look or move."""
    fleet = StubFleet(None)
    _install(fleet, monkeypatch)
    return fleet


@pytest.fixture
def fleet(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> StubFleet:
    """A fleet whose sandbox is the real agent."""
    fleet = StubFleet(guest)
    _install(fleet, monkeypatch)
    return fleet


@pytest.fixture
def belljar() -> Command:
    """Runs one command line and returns its exit code."""

    async def run(*words: str) -> int:
        args = build_parser().parse_args(words)
        return int(await args.handler(args))

    return run
