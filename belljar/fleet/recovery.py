"""What belongs to nobody is found and cleaned away: after a crash, a kill, or a power cut.

    record without a living machine   -> buried: the record stays, with the reason
    record of a start or end that was interrupted -> removed with everything of it
    folder without a record           -> its process is ended, and it is removed
    record whose time has run out     -> ended

A folder whose lock someone holds is in the middle of something and is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from belljar.errors import BelljarError, SandboxBusy, SandboxGone, SandboxNotFound
from belljar.fleet.context import Context
from belljar.fleet.launching import remove_folder, take_lock
from belljar.store.db import SandboxRecord
from belljar.store.publish import sweep as sweep_workplaces
from belljar.store.publish import sweep_folders
from belljar.vm.process import adopt_vmm, find_vmms
from belljar.vm.rundir import RunDir, read_record

log = logging.getLogger(__name__)

LIVE = ("running", "paused")
UNFINISHED = ("creating", "pooled", "ending")


class Undertaker(Protocol):
    """What a sweep does with what it finds."""

    async def kill(self, sandbox_id: str) -> None: ...
    async def erase(self, sandbox_id: str) -> None: ...
    async def bury(self, sandbox_id: str, reason: str) -> None: ...


@dataclass
class SweepReport:
    """Ids of what was cleaned away, by why."""

    expired: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


async def end_process(folder: Path) -> None:
    """End the machine that runs in a folder, if any: its very process, never another one of the same number."""
    record = read_record(folder)
    if record is not None and record.alive:
        identities = [record.identity]
    else:  # an owner that was killed may have started one, and not have come to writing that down
        identities = (await asyncio.to_thread(find_vmms, RunDir(folder).log.name, folder.parent)).get(folder.name, [])
    for identity in identities:
        try:
            vmm = adopt_vmm(identity)
        except SandboxGone:
            continue
        await vmm.kill()


@contextmanager
def _unless_busy(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock, or learn that someone else does."""
    try:
        lock = take_lock(folder)
    except SandboxBusy:
        yield False
        return
    except SandboxGone:
        yield True
        return
    try:
        yield True
    finally:
        os.close(lock)


async def sweep(context: Context, undertaker: Undertaker) -> SweepReport:
    """One round of cleaning."""
    report = SweepReport()
    processes = await asyncio.to_thread(find_vmms, RunDir(context.layout.sandboxes).log.name, context.layout.sandboxes)
    for record in await asyncio.to_thread(context.records.list_sandboxes):
        try:
            await _sweep_record(context, undertaker, record, report, record.id in processes)
        except SandboxNotFound:
            continue  # someone else was faster
        except (BelljarError, OSError) as problem:  # one that cannot be ended must not keep the others alive
            log.warning("sandbox %s could not be cleaned up: %s", record.id, problem)
    await _sweep_folders(context, report)
    for kind in ("fork", "snapshot"):
        await asyncio.to_thread(sweep_workplaces, context.layout.tmp, kind)
    return report


async def _sweep_record(
    context: Context, undertaker: Undertaker, record: SandboxRecord, report: SweepReport, has_process: bool
) -> None:
    folder = context.layout.sandbox(record.id)
    if _is_expired(record):
        # Asked again at the last moment: it may have been given more time since the records were listed.
        if (now := await asyncio.to_thread(context.records.find_sandbox, record.id)) and _is_expired(now):
            await undertaker.kill(record.id)
            report.expired.append(record.id)
        return
    if record.state in LIVE:
        if not _is_alive(folder):
            with _unless_busy(folder) as mine:
                if mine and await _is_still(context, record) and not _is_alive(folder):
                    await undertaker.bury(record.id, "its process was gone when it was looked for; see the host's log for why")
                    report.died.append(record.id)
    elif record.state in UNFINISHED and abs(time.time() - record.created_at) > GRACE_S:  # the clock may have been set back
        with _unless_busy(folder) as mine:
            if mine and await _is_still(context, record):
                await undertaker.erase(record.id)
                report.interrupted.append(record.id)
    elif record.state == "hibernated" and has_process:
        with _unless_busy(folder) as mine:
            if mine and await _is_still(context, record):
                await end_process(folder)  # it was about to end when its owner was killed


def _is_expired(record: SandboxRecord) -> bool:
    return record.expires_at is not None and record.expires_at <= time.time() and record.state not in UNFINISHED


def _is_alive(folder: Path) -> bool:
    machine = read_record(folder)
    return machine is not None and machine.alive


async def _is_still(context: Context, record: SandboxRecord) -> bool:
    """Asked under the lock: since the records were listed, its owner may have put it to sleep, woken it, or finished its start."""
    now = await asyncio.to_thread(context.records.find_sandbox, record.id)
    return now is not None and now.state == record.state


# A record is made a moment before its folder and lock are; a start that is this old and unlocked was interrupted.
GRACE_S = 5.0


async def _sweep_folders(context: Context, report: SweepReport) -> None:
    records = context.records
    for folder in sorted(context.layout.sandboxes.iterdir()):
        if folder.name.endswith(".removing"):
            await asyncio.to_thread(_remove_rest, folder)
            continue
        if await asyncio.to_thread(records.find_sandbox, folder.name):
            continue
        with _unless_busy(folder) as mine:
            # Asked again under the lock: it may have been created in between.
            if mine and not await asyncio.to_thread(records.find_sandbox, folder.name):
                await end_process(folder)
                await asyncio.to_thread(remove_folder, folder)
                report.orphans.append(folder.name)
    for folder in await asyncio.to_thread(
        sweep_folders, context.layout.snapshots, lambda name: records.find_snapshot(name) is not None
    ):
        report.orphans.append(folder.name)


def _remove_rest(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
