"""A capture that is called off: no thread of it goes on with descriptors that are closed by then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from belljar.vm import capture as module
from belljar.vm import memory
from belljar.vm.spec import PAGE
from tests.calling_off import Gate


class StillMachine:
    """A machine that is paused already, and has no devices."""

    state = "paused"
    resumed = False

    def ram(self) -> memory.RamMapping:
        return memory.RamMapping(os.getpid(), 0, PAGE)

    async def save_devices(self, target: Path) -> None:
        target.write_bytes(b"")

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        yield
        self.resumed = True


@pytest.mark.parametrize("step", ["copy_private", "copy_rest"])
async def test_its_memory_stays_open_until_the_last_page_is_written(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    written: list[str] = []

    def slow(*given: Any) -> None:
        target = given[-1]
        gate.wait()
        written.append(os.readlink(f"/proc/self/fd/{target}"))

    monkeypatch.setattr(module, "private_pages", lambda ram: memory.no_pages(PAGE))
    monkeypatch.setattr(module, "copy_private", lambda *_: None)
    monkeypatch.setattr(module, step, slow)
    base = memory.MemoryImage(memory.seal(memory.new_memory(PAGE)), PAGE, memory.no_pages(PAGE))
    machine: Any = StillMachine()
    await gate.call_off(asyncio.create_task(module.capture(machine, base, tmp_path, None)))
    base.close()
    assert [name.split(" ")[0] for name in written] == ["/memfd:belljar-ram"], "the copy went on with a descriptor that was closed"
