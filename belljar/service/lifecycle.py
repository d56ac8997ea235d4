"""When a sandbox goes to sleep or ends by itself, and what keeps it from it.

A persistent sandbox sleeps after real inactivity: no call, no open stream, no running cell, no foreground process. Cells and
foreground processes may have outlived their callers, so the guest is asked before it is put to sleep. Background processes do
not count: whoever starts one and leaves wants no more than that it goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from belljar.errors import BelljarError, DeadlineExceeded
from belljar.fleet.sandbox import Sandbox
from belljar.service.background import catch_up
from belljar.service.workspace import ASKED_FOR, Workspace
from belljar.store.db import SandboxRecord

log = logging.getLogger(__name__)

# A guest that does not answer within this time is busy, whatever with.
ASK_DEADLINE_S = 15.0
LAST_EVENTS = 20


@dataclass(frozen=True)
class Lifecycle:
    """`reason` says why the sandbox is in its state: what keeps it awake, why it sleeps, what it died of."""

    state: str
    reason: str
    ttl_s: float | None
    expires_at: float | None
    persistent: bool
    idle_s: float
    idle_timeout_s: float
    hibernates_in_s: float | None
    hibernates_at: float | None
    calls: int
    streams: int


async def show(workspace: Workspace, sandbox_id: str) -> Lifecycle:
    """Wakes nothing, and does not count as use."""
    record = await workspace.get(sandbox_id)
    activity, timeout_s = workspace.parts.activity, workspace.parts.settings.idle_timeout_s
    uses = activity.uses(sandbox_id)
    kept_awake = _describe(uses.get("call", 0), uses.get("stream", 0))
    if kept_awake is None and _sleeps_by_itself(record):
        kept_awake = await _look(workspace, record)
    idle_s = activity.idle_s(sandbox_id)
    sleeps_in_s = max(0.0, timeout_s - idle_s) if _sleeps_by_itself(record) and kept_awake is None else None
    return Lifecycle(
        state=record.state,
        reason=await _reason(workspace, record, kept_awake, idle_s),
        ttl_s=record.ttl_s,
        expires_at=record.expires_at,
        persistent=record.persistent,
        idle_s=idle_s,
        idle_timeout_s=timeout_s,
        hibernates_in_s=sleeps_in_s,
        hibernates_at=None if sleeps_in_s is None else time.time() + sleeps_in_s,
        calls=uses.get("call", 0),
        streams=uses.get("stream", 0),
    )


async def hibernate_idle(workspace: Workspace, sandbox_id: str) -> bool:
    """Put a persistent sandbox to sleep if it was not in use for the time that the settings allow."""
    activity, timeout_s = workspace.parts.activity, workspace.parts.settings.idle_timeout_s

    def is_due(record: SandboxRecord) -> bool:
        return _sleeps_by_itself(record) and not activity.uses(sandbox_id) and activity.idle_s(sandbox_id) >= timeout_s

    record = await workspace.get(sandbox_id)
    # One that was seen working is looked at every time, so that its rest is counted from the end of that work.
    if not is_due(record) and not (activity.works(sandbox_id) and _sleeps_by_itself(record)):
        return False
    if not activity.uses(sandbox_id) and await _look(workspace, record) is not None:
        return False
    async with activity.lock(sandbox_id):
        record = await workspace.get(sandbox_id)
        idle_s = activity.idle_s(sandbox_id)
        if not is_due(record):
            return False
        sandbox, reason = workspace.handle(record), f"not used for {idle_s:.0f} s"
        await catch_up(workspace.parts.logs, sandbox)
        activity.note_sleep(sandbox_id, reason)
        await sandbox.hibernate()
    await workspace.parts.journal.note(record, "sandbox.hibernated", reason=reason)
    return True


def _sleeps_by_itself(record: SandboxRecord) -> bool:
    return record.persistent and record.state == "running"


async def _look(workspace: Workspace, record: SandboxRecord) -> str | None:
    """What the guest is working on, asked of the guest itself. It is in use as long as it is."""
    work = await find_work(workspace.handle(record))
    workspace.parts.activity.note_work(record.id, work)
    return work


async def find_work(sandbox: Sandbox) -> str | None:
    try:
        async with asyncio.timeout(ASK_DEADLINE_S):
            for context in await sandbox.contexts.list():
                if context.state == "busy" or context.queued:
                    return f"a cell is running in context {context.id}"
            for process in await sandbox.processes.list():
                if process.running and not process.background:
                    return f"process {process.id} is running"
    except (TimeoutError, DeadlineExceeded):
        return "its guest is too busy to answer"
    except BelljarError as problem:
        log.debug("sandbox %s could not be asked what it is doing: %s", sandbox.id, problem.message)
    return None


def _describe(calls: int, streams: int) -> str | None:
    counts = [(calls, "call"), (streams, "open stream")]
    words = [f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in counts if count]
    return f"in use: {' and '.join(words)}" if words else None


async def _reason(workspace: Workspace, record: SandboxRecord, kept_awake: str | None, idle_s: float) -> str:
    if record.state == "running":
        if kept_awake is not None:
            return kept_awake
        if record.persistent:
            return f"not used for {idle_s:.0f} s"
        return "it is not persistent, and runs until it ends"
    if record.state == "hibernated":
        for event in reversed(await workspace.parts.journal.read(workspace.name, record.id, last=LAST_EVENTS)):
            if event.type == "sandbox.hibernated":
                return str(event.payload.get("reason") or ASKED_FOR)
            if event.type in ("sandbox.woken", "sandbox.created"):
                return workspace.parts.activity.sleep_reason(record.id) or ASKED_FOR
    return record.reason or ASKED_FOR
