"""The one way a machine starts: create, restore from a snapshot, fork and wake all come through here.

    folder laid out -> QEMU on a private mapping of the image -> device state loaded -> guest resumed -> session agreed -> thaw

The thaw message makes the machine itself again: right time, fresh randomness, its own name.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import (
    BelljarError,
    DeadlineExceeded,
    HostBusy,
    HostDiskShort,
    HostError,
    SandboxBusy,
    SandboxError,
    SandboxGone,
    SnapshotMismatch,
    StartFailed,
)
from belljar.fleet.context import Context, Origin
from belljar.store.db import SandboxRecord
from belljar.store.manifest import Manifest, SavedMachine
from belljar.vm.disk import clone_file
from belljar.vm.link import Link
from belljar.vm.machine import Machine, Parts
from belljar.vm.memory import save_map
from belljar.vm.rundir import RunDir
from belljar.vm.spec import Fingerprint, Shape

# Emulated guests on a loaded host are slow; a guest that has not answered by now never will.
ANSWER_DEADLINE_S = 60.0


@dataclass
class Running:
    """A live machine, its session, and the lock that makes this process its only user."""

    machine: Machine
    link: Link | None  # a paused guest cannot agree on a session
    lock: int

    def break_off(self, why: BelljarError) -> None:
        """Whoever waits for an answer gets this instead."""
        if self.link:
            self.link.fail(why)

    async def detach(self) -> None:
        """Let go; the machine lives on."""
        try:
            await self._close_link()
            await self.machine.release()
        finally:
            os.close(self.lock)

    async def kill(self) -> None:
        try:
            await self._close_link()
            await self.machine.kill()
        finally:
            os.close(self.lock)  # whatever went wrong: a lock that stays would keep every clean-up away

    async def _close_link(self) -> None:
        if self.link:
            await self.link.aclose()
            self.link = None


def check_restorable(context: Context, manifest: Manifest) -> None:
    """Refuse device state that this host's QEMU would not understand, with the reason."""
    try:
        saved = Fingerprint(**manifest.fingerprint)
    except TypeError:
        raise SnapshotMismatch("the saved machine does not say what made it; it cannot be restored") from None
    if difference := saved.mismatch(context.facts.fingerprint):
        raise SnapshotMismatch(
            f"this saved machine cannot be restored here: {difference}. Restore it where it was made, or make it again here."
        )


@contextmanager
def host_trouble(what: str) -> Iterator[None]:
    """What the host's file system refuses becomes an error of ours."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HostDiskShort(f"{what}: the host's disk is full; remove snapshots or sandboxes") from problem
        raise HostError(f"{what}: {problem.strerror or problem}") from problem


@contextmanager
def start_trouble() -> Iterator[None]:
    """What is wrong with a machine that was just started, and is no more, is not wrong with the sandbox that was asked for it."""
    try:
        yield
    except DeadlineExceeded as slow:
        raise HostBusy(f"the host is too busy: a machine was not ready in time and was ended again ({slow.message})") from slow
    except SandboxError as problem:
        raise StartFailed(f"the machine ended while it was started: {problem.message}") from problem


def take_lock(folder: Path) -> int:
    """Become the only process that uses this sandbox; raises SandboxBusy if another one does."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise SandboxGone(f"sandbox {folder.name} is being removed") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        pid = int(holder) if holder.isdecimal() else None
        raise SandboxBusy(f"sandbox {folder.name} is in use by process {holder}; wait for it, or end it", pid=pid) from None
    try:
        with host_trouble(f"sandbox {folder.name} could not be locked"):
            os.truncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except HostError:
        os.close(fd)
        raise
    return fd


def lay_out(origin: Origin, folder: Path, disk_mib: int) -> None:
    """Fill a new sandbox's folder: its own disk, and links to what it shares. Blocks; run it in a thread."""
    saved = SavedMachine(folder)
    clone_file(origin.saved.disk, saved.disk)
    if disk_mib > origin.manifest.disk_mib:
        os.truncate(saved.disk, disk_mib << 20)
    saved.link_template_files(origin.saved)
    saved.write_manifest(origin.manifest)


async def start_machine(context: Context, origin: Origin, record: SandboxRecord, folder: Path) -> Machine:
    """Restore the origin into this sandbox's folder. The machine is paused."""
    saved = SavedMachine(folder)
    if origin.image.delta.any():
        # Whoever adopts the machine must know how its memory differs from the template's.
        await asyncio.to_thread(save_map, origin.image.delta, saved.pagemap)
    parts = Parts(record.id, Shape(record.vcpus, record.memory_mib), saved.root, saved.disk, record.uid)
    return await Machine.restore(RunDir(folder), parts, context.facts, origin.image, origin.saved.devices)


async def set_clock(link: Link) -> None:
    """Step a guest's clock after a pause."""
    await link.request("thaw", {"time_ns": time.time_ns()}, timeout_s=ANSWER_DEADLINE_S)


async def thaw(link: Link, record: SandboxRecord, manifest: Manifest, *, grow: bool = False) -> None:
    """Tell a restored guest what has changed: the time, its randomness, who it is, its environment."""
    request = {
        "time_ns": time.time_ns(),
        "entropy": base64.b64encode(os.urandom(64)).decode(),
        "hostname": record.id,
        "machine_id": uuid.uuid4().hex,
        "env": dict(record.env),
        "cwd": manifest.workdir,
        "grow_disk": grow,
    }
    await link.request("thaw", request, timeout_s=ANSWER_DEADLINE_S)


async def enliven(machine: Machine, record: SandboxRecord, manifest: Manifest) -> Link:
    """Let a restored machine run until it has answered."""
    grown = record.disk_mib > manifest.disk_mib
    if grown:
        await machine.grow_disk(record.disk_mib << 20)
    # The hello and the thaw wait in the socket before the guest runs: it finds both with its first look.
    link = await machine.dial()
    try:
        await machine.resume()
        await thaw(link, record, manifest, grow=grown)
    except BaseException:
        await link.aclose()
        raise
    return link


def remove_folder(folder: Path) -> None:
    """Remove a sandbox's folder, in one visible step: it is renamed first, so that nobody finds half of it."""
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.removing")
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


async def discard(context: Context, record_id: str, machine: Machine | None, lock: int | None) -> None:
    """Undo a start that did not succeed: no process, no folder, no record is left."""
    try:
        if machine is not None:
            await machine.kill()
        await asyncio.to_thread(remove_folder, context.layout.sandbox(record_id))
        await asyncio.to_thread(context.records.delete_sandbox, record_id)
    finally:
        if lock is not None:
            os.close(lock)
