"""The whole of a live machine at one instant: devices, memory and disk, in files and a memfd that a restore can start from.

Memory that the machine never wrote is copied after it runs again; everything else within the pause, so that page cache and disk
blocks agree.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from belljar.vm.disk import clone_file
from belljar.vm.finishing import in_thread
from belljar.vm.machine import Machine
from belljar.vm.memory import MemoryImage, Pages, RamMapping, copy_private, copy_rest, new_memory, private_pages, seal

DEVICES = "devices.state"
DISK = "disk.raw"


@dataclass
class Capture:
    """An instant of a machine. The owner of `image` closes it; the files belong to the folder they are in."""

    image: MemoryImage
    folder: Path

    @property
    def devices(self) -> Path:
        return self.folder / DEVICES

    @property
    def disk(self) -> Path:
        return self.folder / DISK


async def capture(machine: Machine, base: MemoryImage, folder: Path, disk: Path | None, *, resume: bool = True) -> Capture:
    """Capture into `folder`. Without `disk` the machine's own disk file is left to stand for itself, and it stays paused."""
    memory = new_memory(base.size)
    try:
        ram = machine.ram()
        if resume:
            async with machine.paused():
                written = await _capture_paused(machine, ram, memory, folder, disk)
        else:
            if machine.state == "running":
                await machine.pause()
            written = await _capture_paused(machine, ram, memory, folder, disk)
        await in_thread(copy_rest, base, written, memory)
    except BaseException:
        os.close(memory)
        raise
    return Capture(MemoryImage(seal(memory), base.size, base.delta | written), folder)


async def _capture_paused(machine: Machine, ram: RamMapping, memory: int, folder: Path, disk: Path | None) -> Pages:
    await machine.save_devices(folder / DEVICES)
    written = await asyncio.to_thread(private_pages, ram)
    work = [in_thread(copy_private, ram, written, memory)]
    if disk is not None:
        work.append(in_thread(clone_file, disk, folder / DISK))
    # Both must have ended before the machine may run again, even when one of them fails or the caller is cancelled.
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    return written
