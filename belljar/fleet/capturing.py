"""What is made of a live sandbox: a snapshot on disk, the origin of a fork, or its own sleep."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from belljar.errors import SandboxError
from belljar.fleet.admission import check_disk, check_room
from belljar.fleet.context import Context, Origin
from belljar.fleet.costs import anonymous_bytes
from belljar.store.db import SandboxRecord, SnapshotRecord
from belljar.store.manifest import Manifest, SavedMachine, folder_bytes
from belljar.store.publish import publish, workplace
from belljar.vm.capture import Capture, capture
from belljar.vm.finishing import in_thread
from belljar.vm.machine import Machine
from belljar.vm.memory import MemoryImage, borrow_image, load_image, load_map, no_pages, save_delta

SLEEP = "sleep"

# Told the size of a snapshot before it is published; raises if it must not be.
Admit = Callable[[int], Awaitable[None]]


def running_image(machine: Machine, folder: Path) -> MemoryImage:
    """The image that a machine runs on, lent by the machine itself: it may have been started by a process that is gone."""
    size = machine.shape.memory_bytes
    saved = SavedMachine(folder)
    delta = load_map(saved.pagemap, size) if saved.pagemap.exists() else no_pages(size)
    image = borrow_image(machine.pid, machine.ram_fd, machine.ram_identity, size, delta)
    if image is None:
        raise SandboxError("the machine's process no longer holds the memory it was given; it cannot be captured")
    return image


def manifest_of(context: Context, record: SandboxRecord, folder: Path) -> Manifest:
    """What a capture of this sandbox is: its template's manifest, with what this sandbox has of its own."""
    manifest = SavedMachine(folder).read_manifest()
    fingerprint = context.facts.fingerprint.to_json()
    return replace(manifest, disk_mib=record.disk_mib, fingerprint=fingerprint, created_at=time.time())


async def _check_capture(context: Context, machine: Machine, folder: Path, *, machines: int, keep_disk: bool) -> None:
    """Room for one more copy of the memory, and for the disk as it is now."""
    memory = anonymous_bytes(machine.pid)
    used = SavedMachine(folder).memory.stat().st_blocks * 512
    disk = SavedMachine(folder).disk.stat().st_blocks * 512 if keep_disk else 0
    await asyncio.to_thread(
        check_room, context, machines=machines, memory_mib=machine.shape.memory_mib, new_bytes=memory + used, disk_bytes=disk
    )


async def _capture(machine: Machine, sandbox_folder: Path, folder: Path, disk: Path | None, *, resume: bool) -> Capture:
    base = await in_thread(running_image, machine, sandbox_folder, undo=MemoryImage.close)
    try:
        return await capture(machine, base, folder, disk, resume=resume)
    finally:
        base.close()


@asynccontextmanager
async def fork_origin(context: Context, record: SandboxRecord, machine: Machine, children: int) -> AsyncIterator[Origin]:
    """An origin for children, of this instant. It lives in memory and goes with the block; children keep what they need of it."""
    folder = context.layout.sandbox(record.id)
    await _check_capture(context, machine, folder, machines=children, keep_disk=True)
    with workplace(context.layout.tmp, "fork") as place:
        saved = SavedMachine(place.path)
        taken = await _capture(machine, folder, place.path, SavedMachine(folder).disk, resume=True)
        try:
            await asyncio.to_thread(saved.link_template_files, SavedMachine(folder))
            yield Origin(saved, manifest_of(context, record, folder), taken.image)
        finally:
            taken.image.close()


async def take_snapshot(
    context: Context, record: SandboxRecord, machine: Machine, metadata: Mapping[str, str], admit: Admit | None
) -> SnapshotRecord:
    """Save a live sandbox for ever. It runs on as soon as its private memory and disk are copied."""
    folder = context.layout.sandbox(record.id)
    await _check_capture(context, machine, folder, machines=0, keep_disk=True)
    snapshot_id = f"snap-{secrets.token_hex(8)}"
    with workplace(context.layout.tmp, "snapshot") as place:
        saved = SavedMachine(place.path)
        taken = await _capture(machine, folder, place.path, SavedMachine(folder).disk, resume=True)
        try:
            await in_thread(_write_saved, context, saved, taken, SavedMachine(folder), manifest_of(context, record, folder))
        finally:
            taken.image.close()
        size = await asyncio.to_thread(folder_bytes, place.path)
        if admit is not None:
            await admit(size)
        await asyncio.to_thread(publish, place.path, context.layout.snapshot(snapshot_id))
        # Still under the lock of the work place, which is the folder's own: no sweep takes it for an orphan.
        snapshot = SnapshotRecord(
            id=snapshot_id,
            sandbox_id=record.id,
            template=record.template,
            template_digest=record.template_digest,
            created_at=time.time(),
            size_bytes=size,
            metadata=dict(metadata),
        )
        return await asyncio.to_thread(context.records.insert_snapshot, snapshot)


def _write_saved(context: Context, saved: SavedMachine, taken: Capture, template: SavedMachine, manifest: Manifest) -> None:
    check_disk(context, int(taken.image.delta.sum()) * 4096)
    saved.link_template_files(template)
    save_delta(taken.image, saved.pages, saved.pagemap)
    saved.write_manifest(manifest)


async def put_to_sleep(context: Context, record: SandboxRecord, machine: Machine) -> None:
    """Save a machine's memory and devices beside its disk. It is left paused: the next step is to end it."""
    folder = context.layout.sandbox(record.id)
    await _check_capture(context, machine, folder, machines=0, keep_disk=False)
    was_running = machine.state == "running"
    new, sleep = folder / f"{SLEEP}.new", folder / SLEEP
    # Whatever an owner that was killed has left here is older than the machine that runs now.
    for leftover in (new, sleep):
        await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        taken = await _capture(machine, folder, new, None, resume=False)
        try:
            await in_thread(_write_sleep, context, SavedMachine(new), taken, folder, manifest_of(context, record, folder))
        finally:
            taken.image.close()
        await in_thread(publish, new, sleep)
    except BaseException:
        if was_running and machine.state == "paused" and not machine.ended:
            await machine.resume()
        raise


def _write_sleep(context: Context, saved: SavedMachine, taken: Capture, folder: Path, manifest: Manifest) -> None:
    _write_saved(context, saved, taken, SavedMachine(folder), manifest)
    # The machine's flushes were not passed on while it ran; from here on this disk must survive a power cut.
    with SavedMachine(folder).disk.open("rb") as disk:
        os.fsync(disk.fileno())


async def sleep_origin(context: Context, record: SandboxRecord) -> Origin:
    """What a sleeping sandbox wakes from."""
    saved = SavedMachine(context.layout.sandbox(record.id) / SLEEP)
    manifest = await asyncio.to_thread(saved.read_manifest)
    await asyncio.to_thread(saved.check_complete, delta=True, disk=False)
    size = manifest.memory_mib << 20
    image = await in_thread(load_image, saved.memory, size, saved.pages, saved.pagemap, undo=MemoryImage.close)
    return Origin(saved, manifest, image)


def drop_sleep(folder: Path) -> None:
    shutil.rmtree(folder / SLEEP, ignore_errors=True)
