"""What every benchmark works with: the fleet, the template, a place for files, and the certainty that all of it ends.

Sandboxes carry the tag of this run, and a time to live in case this process is killed; at the end exactly those are ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from belljar.errors import BelljarError
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings, load_settings
from belljar.store.layout import Layout
from belljar.store.manifest import Manifest, SavedMachine
from belljar.store.publish import workplace
from belljar.templates.bake import build_template, host_facts
from belljar.templates.kernel import KernelImage, build_kernel
from belljar.vm.disk import clone_file
from belljar.vm.host import HostFacts
from belljar.vm.machine import Parts
from belljar.vm.memory import MemoryImage, RamMapping, find_ram, load_image
from belljar.vm.rundir import read_record
from belljar.vm.spec import Shape

TEMPLATE = "base"
TIME_TO_LIVE_S = 3600.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Lab:
    """One run of the benchmarks."""

    settings: Settings
    layout: Layout
    facts: HostFacts
    kernel: KernelImage
    template: SavedMachine
    manifest: Manifest
    image: MemoryImage
    fleet: Fleet
    place: Path
    quick: bool
    tag: dict[str, str]

    def count(self, full: int, quick: int) -> int:
        """How many samples to take."""
        return quick if self.quick else full

    async def create(self, fleet: Fleet | None = None) -> Sandbox:
        return await (fleet or self.fleet).create(TEMPLATE, metadata=self.tag, ttl_s=TIME_TO_LIVE_S)

    async def kill_all(self, sandboxes: list[Sandbox]) -> None:
        await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        sandbox = await self.create()
        try:
            yield sandbox
        finally:
            await sandbox.kill()

    @asynccontextmanager
    async def pooled_fleet(self, size: int) -> AsyncIterator[Fleet]:
        """A second fleet on the same home, which starts machines ahead."""
        async with await Fleet.open(replace(self.settings, pool_size=size), maintain=False) as fleet:
            yield fleet

    def parts(self, name: str) -> tuple[Path, Parts]:
        """A folder with a disk of its own, for a machine that is no sandbox."""
        folder = self.place / f"{name}-{secrets.token_hex(4)}"
        folder.mkdir()
        clone_file(self.template.disk, folder / "disk.raw")
        # The last of the range is the one that bakes use; sandboxes take the lowest.
        uid = self.settings.uid_base + self.settings.uid_count - 1 if self.facts.is_root else None
        shape = Shape(self.manifest.vcpus, self.manifest.memory_mib)
        return folder, Parts(name, shape, self.template.root, folder / "disk.raw", uid)

    def pid(self, sandbox: Sandbox) -> int:
        """The VMM's process."""
        record = read_record(self.layout.sandbox(sandbox.id))
        assert record is not None, "a live sandbox has a record of its machine"
        return record.pid

    def ram(self, sandbox: Sandbox) -> RamMapping:
        return find_ram(self.pid(sandbox), self.manifest.memory_mib << 20)


async def answered(sandbox: Sandbox) -> None:
    """The first answer: a program was run to its end."""
    result = await sandbox.processes.run(["true"])
    assert result.exit_code == 0, result


def milliseconds(began: float) -> float:
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def open_lab(*, quick: bool) -> AsyncIterator[Lab]:
    """Everything ready: template built, its memory loaded, fleet open. All that was started is ended on the way out."""
    settings = load_settings()
    layout = Layout(settings.home)
    info = await build_template(settings, TEMPLATE, say)
    assert info.manifest is not None
    kernel = build_kernel(layout, say)
    facts = host_facts(settings, layout, kernel)
    template = SavedMachine(layout.template(info.digest))
    tag = {"bench": "1", "bench_run": secrets.token_hex(4)}
    with workplace(layout.tmp, "bench") as place, contextlib.closing(_load(template, info.manifest)) as image:
        async with await Fleet.open(replace(settings, pool_size=0), maintain=False) as fleet:
            lab = Lab(settings, layout, facts, kernel, template, info.manifest, image, fleet, place.path, quick, tag)
            try:
                yield lab
            finally:
                await _end_tagged(fleet, tag)


def _load(template: SavedMachine, manifest: Manifest) -> MemoryImage:
    return load_image(template.memory, manifest.memory_mib << 20)


async def _end_tagged(fleet: Fleet, tag: dict[str, str]) -> None:
    for record in await fleet.list(tag):
        try:
            await fleet.kill(record.id)
        except BelljarError as problem:
            say(f"bench: sandbox {record.id} could not be ended: {problem.message}")
