"""One workspace's sandboxes and snapshots: what is not its own is not there.

Calls that need the guest wake a hibernated sandbox by themselves. Reading a status never does, and a paused sandbox stays paused:
somebody asked for that.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from belljar.errors import InvalidInput, SandboxNotFound, SnapshotNotFound, WrongState
from belljar.fleet.recovery import UNFINISHED
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import MAX_TTL_S, Fleet
from belljar.service.activity import Activity
from belljar.service.journal import Journal
from belljar.settings import Settings
from belljar.store.db import Records, SandboxRecord, SnapshotRecord
from belljar.store.events import EventRecord


@dataclass(frozen=True)
class Parts:
    """What all workspaces of one service share."""

    settings: Settings
    fleet: Fleet
    records: Records
    activity: Activity
    journal: Journal


@dataclass(frozen=True)
class Lifecycle:
    """When a sandbox ends or goes to sleep by itself, and why it is in the state it is in."""

    ttl_s: float | None
    expires_at: float | None
    persistent: bool
    idle_s: float
    in_flight: int
    idle_timeout_s: float
    hibernates_in_s: float | None
    state: str
    reason: str | None


class Workspace:
    """The view of one workspace."""

    def __init__(self, parts: Parts, name: str) -> None:
        self.parts = parts
        self.name = name

    # -- sandboxes ----------------------------------------------------------------------------------------------------------

    async def create(
        self,
        template: str,
        *,
        snapshot: str | None = None,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        ttl_s: float | None = None,
        persistent: bool = False,
        egress: object = None,
        egress_secrets: Iterable[Mapping[str, str]] | None = None,
    ) -> SandboxRecord:
        if snapshot is not None:
            await self.get_snapshot(snapshot)
        sandbox = await self.parts.fleet.create(
            template,
            snapshot=snapshot,
            metadata=metadata,
            env=env,
            ttl_s=ttl_s,
            workspace=self.name,
            persistent=persistent,
            egress=egress,
            egress_secrets=egress_secrets,
        )
        self.parts.activity.touch(sandbox.id)
        await self.parts.journal.note(sandbox.record, "sandbox.created", template=sandbox.record.template, snapshot=snapshot)
        return sandbox.record

    async def get(self, sandbox_id: str) -> SandboxRecord:
        record = await asyncio.to_thread(self.parts.records.find_sandbox, sandbox_id)
        if record is None or record.workspace != self.name or record.state in UNFINISHED:
            raise SandboxNotFound(f"no sandbox {sandbox_id[:80]!r}")
        return record

    async def list(self, metadata: Mapping[str, str] | None = None) -> builtins.list[SandboxRecord]:
        found = await asyncio.to_thread(self.parts.records.list_sandboxes, metadata=metadata, workspace=self.name)
        return [record for record in found if record.state not in UNFINISHED]

    async def kill(self, sandbox_id: str, reason: str = "it was asked for") -> None:
        """End a sandbox. Doing it again is no error; an id that was never this workspace's is SandboxNotFound."""
        try:
            record = await self.get(sandbox_id)
            await self.parts.fleet.kill(sandbox_id)
        except SandboxNotFound:
            if await self.parts.journal.had(self.name, sandbox_id):
                return
            raise
        await self.parts.journal.note(record, "sandbox.deleted", reason=reason)

    # -- using one ----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def guest(self, sandbox_id: str) -> AsyncIterator[Sandbox]:
        """The sandbox, awake and with a running guest; it does not go to sleep before the block ends."""
        async with self.machine(sandbox_id) as sandbox:
            if sandbox.record.state == "paused":
                raise WrongState(f"sandbox {sandbox_id} is paused; resume it first")
            yield sandbox

    @asynccontextmanager
    async def machine(self, sandbox_id: str) -> AsyncIterator[Sandbox]:
        """The same, but a paused one will do."""
        await self.get(sandbox_id)
        with self.parts.activity.using(sandbox_id):
            async with self.parts.activity.lock(sandbox_id):
                record = await self.get(sandbox_id)
                sandbox = await self._handle(record)
                if record.state == "hibernated":
                    await self._wake(sandbox, "a call needed it")
            yield sandbox

    async def _handle(self, record: SandboxRecord) -> Sandbox:
        sandbox = await self.parts.fleet.get(record.id)
        sandbox.record = record  # what was changed here since the fleet last looked
        return sandbox

    async def _wake(self, sandbox: Sandbox, reason: str) -> None:
        await sandbox.wake()
        await self.parts.journal.note(sandbox.record, "sandbox.woken", reason=reason)

    # -- moves --------------------------------------------------------------------------------------------------------------

    async def pause(self, sandbox_id: str) -> None:
        await self._move(sandbox_id, "pause", "sandbox.paused")

    async def resume(self, sandbox_id: str) -> None:
        await self._move(sandbox_id, "resume", "sandbox.resumed")

    async def hibernate(self, sandbox_id: str, reason: str = "it was asked for") -> None:
        await self._move(sandbox_id, "hibernate", "sandbox.hibernated", reason=reason)

    async def wake(self, sandbox_id: str) -> None:
        """Nothing happens to one that is awake."""
        await self._move(sandbox_id, "wake", "sandbox.woken", reason="it was asked for")

    async def _move(self, sandbox_id: str, move: str, kind: str, **payload: Any) -> None:
        await self.get(sandbox_id)
        self.parts.activity.touch(sandbox_id)
        async with self.parts.activity.lock(sandbox_id):
            before = await self.get(sandbox_id)
            sandbox = await self._handle(before)
            await getattr(sandbox, move)()
            after = await self.get(sandbox_id)
        if after.state != before.state:
            await self.parts.journal.note(after, kind, **payload)

    async def hibernate_idle(self, sandbox_id: str) -> bool:
        """Put a persistent sandbox to sleep if nobody has used it for the time that the settings allow."""
        activity, timeout_s = self.parts.activity, self.parts.settings.idle_timeout_s
        async with activity.lock(sandbox_id):
            record = await self.get(sandbox_id)
            idle_s = activity.idle_s(sandbox_id)
            if not record.persistent or record.state != "running" or activity.in_flight(sandbox_id) or idle_s < timeout_s:
                return False
            await (await self._handle(record)).hibernate()
        await self.parts.journal.note(record, "sandbox.hibernated", reason=f"not used for {idle_s:.0f} s")
        return True

    # -- lifecycle ----------------------------------------------------------------------------------------------------------

    async def lifecycle(self, sandbox_id: str) -> Lifecycle:
        record = await self.get(sandbox_id)
        idle_s, timeout_s = self.parts.activity.idle_s(sandbox_id), self.parts.settings.idle_timeout_s
        sleepy = record.persistent and record.state == "running"
        return Lifecycle(
            ttl_s=record.ttl_s,
            expires_at=record.expires_at,
            persistent=record.persistent,
            idle_s=idle_s,
            in_flight=self.parts.activity.in_flight(sandbox_id),
            idle_timeout_s=timeout_s,
            hibernates_in_s=max(0.0, timeout_s - idle_s) if sleepy else None,
            state=record.state,
            reason=record.reason,
        )

    async def set_ttl(self, sandbox_id: str, ttl_s: float | None) -> None:
        """From now on so many seconds; None is without end."""
        if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:
            raise InvalidInput("ttl_seconds must be a number of seconds, more than 0 and at most ten years")
        await self.change(sandbox_id, ttl_s=ttl_s, expires_at=None if ttl_s is None else time.time() + ttl_s)

    async def set_persistent(self, sandbox_id: str, persistent: bool) -> None:
        await self.change(sandbox_id, persistent=persistent)

    async def change(self, sandbox_id: str, **changes: Any) -> SandboxRecord:
        """Change what the record says; the fleet's own handle learns of it with the next call that uses it."""
        await self.get(sandbox_id)
        return await asyncio.to_thread(self.parts.records.update_sandbox, sandbox_id, durable=True, **changes)

    # -- snapshots and events -----------------------------------------------------------------------------------------------

    async def snapshot(self, sandbox_id: str, metadata: Mapping[str, str] | None = None) -> SnapshotRecord:
        async with self.machine(sandbox_id) as sandbox:
            taken = await sandbox.snapshot(metadata)
        await self.parts.journal.note(sandbox.record, "sandbox.snapshotted", snapshot=taken.id)
        return taken

    async def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        record = await asyncio.to_thread(self.parts.records.find_snapshot, snapshot_id)
        if record is None or record.workspace != self.name:
            raise SnapshotNotFound(f"no snapshot {snapshot_id[:80]!r}")
        return record

    async def snapshots(self) -> builtins.list[SnapshotRecord]:
        """Oldest first."""
        return await asyncio.to_thread(self.parts.records.list_snapshots, workspace=self.name)

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self.get_snapshot(snapshot_id)
        await self.parts.fleet.remove_snapshot(snapshot_id)

    async def events(self, sandbox_id: str | None = None, *, after: int = 0, last: int = 1000) -> builtins.list[EventRecord]:
        """What happened to one sandbox, or to all; also of one that is gone."""
        await self.check_known(sandbox_id)
        return await self.parts.journal.read(self.name, sandbox_id, after=after, last=last)

    def follow(self, sandbox_id: str | None, after: int, last: int) -> AsyncIterator[EventRecord | None]:
        return self.parts.journal.follow(self.name, sandbox_id, after, last)

    async def check_known(self, sandbox_id: str | None) -> None:
        if sandbox_id is not None and not await self.parts.journal.had(self.name, sandbox_id):
            await self.get(sandbox_id)
