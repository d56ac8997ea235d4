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
from belljar.fleet.checks import check_metadata
from belljar.fleet.recovery import UNFINISHED
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import MAX_TTL_S, Fleet
from belljar.service.activity import Activity, Use
from belljar.service.background import catch_up
from belljar.service.journal import Journal
from belljar.service.logs import Logs
from belljar.service.quotas import Quotas
from belljar.settings import Settings
from belljar.store.db import Records, SandboxRecord, SnapshotRecord
from belljar.store.events import EventRecord
from belljar.store.pages import Page

ASKED_FOR = "it was asked for"
# What a sandbox can be seen as; before and after that it is not there.
VISIBLE = ("running", "paused", "hibernated", "dead")


@dataclass(frozen=True)
class Parts:
    """What all workspaces of one service share."""

    settings: Settings
    fleet: Fleet
    records: Records
    activity: Activity
    journal: Journal
    logs: Logs
    quotas: Quotas


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
        disk_mib: int | None = None,
        egress: object = None,
        egress_secrets: Iterable[Mapping[str, str]] | None = None,
    ) -> SandboxRecord:
        if snapshot is not None:
            await self.get_snapshot(snapshot)
        with self.parts.quotas.ticket(self.name) as ticket:
            sandbox = await self.parts.fleet.create(
                template,
                snapshot=snapshot,
                metadata=metadata,
                env=env,
                ttl_s=ttl_s,
                workspace=self.name,
                persistent=persistent,
                disk_mib=disk_mib,
                egress=egress,
                egress_secrets=egress_secrets,
                ticket=ticket,
            )
        self.parts.activity.touch(sandbox.id)
        await self.parts.journal.note(sandbox.record, "sandbox.created", template=sandbox.record.template, snapshot=snapshot)
        return sandbox.record

    async def get(self, sandbox_id: str) -> SandboxRecord:
        record = await asyncio.to_thread(self.parts.records.find_sandbox, sandbox_id)
        if record is None or record.workspace != self.name or record.state in UNFINISHED:
            raise SandboxNotFound(f"no sandbox {sandbox_id[:80]!r}")
        return record

    async def list(
        self, metadata: Mapping[str, str] | None = None, *, state: str | None = None, page: Page | None = None
    ) -> builtins.list[SandboxRecord]:
        """Oldest first; those that carry all of `metadata`, and are in that state."""
        states = [each for each in VISIBLE if state in (None, each)]
        return await asyncio.to_thread(
            self.parts.records.list_sandboxes,
            metadata=check_metadata(metadata),
            workspace=self.name,
            states=states,
            page=page,
        )

    async def kill(self, sandbox_id: str, reason: str = ASKED_FOR) -> None:
        """End a sandbox. Doing it again is no error; an id that was never this workspace's is SandboxNotFound."""
        try:
            record = await self.get(sandbox_id)
            await self.parts.fleet.kill(sandbox_id)
        except SandboxNotFound:
            if await self.parts.journal.had(self.name, sandbox_id):
                return
            raise
        if record.state == "dead" and not await self.parts.journal.tells(sandbox_id, "sandbox.died"):
            await self.parts.journal.note(record, "sandbox.died", reason=record.reason)  # before the next round could tell it
        await self.parts.journal.note(record, "sandbox.deleted", reason=reason)

    # -- using one ----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def guest(self, sandbox_id: str, use: Use = "call") -> AsyncIterator[Sandbox]:
        """The sandbox, awake and with a running guest; it does not go to sleep before the block ends."""
        async with self.machine(sandbox_id, use) as sandbox:
            if sandbox.record.state == "paused":
                raise WrongState(f"sandbox {sandbox_id} is paused; resume it first")
            yield sandbox

    @asynccontextmanager
    async def machine(self, sandbox_id: str, use: Use = "call") -> AsyncIterator[Sandbox]:
        """The same, but a paused one will do."""
        sandbox = self.handle(await self.get(sandbox_id))
        with self.parts.activity.using(sandbox_id, use):
            async with self.parts.activity.lock(sandbox_id):
                if not sandbox.attached:  # asleep, or put to sleep while this call waited its turn
                    sandbox = self.handle(await self.get(sandbox_id))
                    if sandbox.record.state == "hibernated":
                        await self._wake(sandbox, "a call needed it")
            yield sandbox

    def handle(self, record: SandboxRecord) -> Sandbox:
        """The sandbox as it is: nothing is woken, and nobody is counted as using it."""
        sandbox = self.parts.fleet.handle(record)
        sandbox.record = record  # what was changed here since the fleet last looked
        return sandbox

    async def _wake(self, sandbox: Sandbox, reason: str) -> None:
        with self.parts.quotas.ticket(self.name) as ticket:
            await ticket.admit_waking(sandbox.id, sandbox.record.memory_mib)
            await sandbox.wake()
        await self.parts.journal.note(sandbox.record, "sandbox.woken", reason=reason)

    async def stats(self, sandbox_id: str) -> dict[str, Any]:
        """What a running sandbox uses. Nothing is woken for it, and it does not count as use."""
        record = await self.get(sandbox_id)
        if record.state != "running":
            raise WrongState(f"sandbox {sandbox_id} is {record.state}; only a running one can be measured")
        return await self.handle(record).stats()

    # -- moves --------------------------------------------------------------------------------------------------------------

    async def pause(self, sandbox_id: str) -> None:
        await self._move(sandbox_id, "pause", "sandbox.paused")

    async def resume(self, sandbox_id: str) -> None:
        await self._move(sandbox_id, "resume", "sandbox.resumed")

    async def hibernate(self, sandbox_id: str, reason: str = ASKED_FOR) -> None:
        await self._move(sandbox_id, "hibernate", "sandbox.hibernated", reason=reason)

    async def wake(self, sandbox_id: str) -> None:
        """Nothing happens to one that is awake."""
        await self.get(sandbox_id)
        self.parts.activity.touch(sandbox_id)
        async with self.parts.activity.lock(sandbox_id):
            sandbox = self.handle(await self.get(sandbox_id))
            if sandbox.record.state not in ("running", "paused"):
                await self._wake(sandbox, ASKED_FOR)

    async def _move(self, sandbox_id: str, move: str, kind: str, **payload: Any) -> None:
        await self.get(sandbox_id)
        self.parts.activity.touch(sandbox_id)
        async with self.parts.activity.lock(sandbox_id):
            before = await self.get(sandbox_id)
            sandbox = self.handle(before)
            if move == "hibernate" and before.state == "running":
                await catch_up(self.parts.logs, sandbox)
                self.parts.activity.note_sleep(sandbox_id, payload["reason"])
            await getattr(sandbox, move)()
            after = await self.get(sandbox_id)
        if after.state != before.state:
            await self.parts.journal.note(after, kind, **payload)

    # -- lifecycle ----------------------------------------------------------------------------------------------------------

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
            with self.parts.quotas.ticket(self.name) as ticket:
                await ticket.admit_bytes(1)  # a full workspace is told before any work is done
                taken = await sandbox.snapshot(metadata, admit=ticket.admit_bytes)
        await self.parts.journal.note(sandbox.record, "sandbox.snapshotted", snapshot=taken.id)
        return taken

    async def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        record = await asyncio.to_thread(self.parts.records.find_snapshot, snapshot_id)
        if record is None or record.workspace != self.name:
            raise SnapshotNotFound(f"no snapshot {snapshot_id[:80]!r}")
        return record

    async def snapshots(
        self,
        metadata: Mapping[str, str] | None = None,
        *,
        sandbox_id: str | None = None,
        page: Page | None = None,
    ) -> builtins.list[SnapshotRecord]:
        """Oldest first, unless the page says otherwise."""
        return await asyncio.to_thread(
            self.parts.records.list_snapshots,
            metadata=check_metadata(metadata),
            workspace=self.name,
            sandbox_id=sandbox_id,
            page=page,
        )

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self.get_snapshot(snapshot_id)
        await self.parts.fleet.remove_snapshot(snapshot_id)

    async def events(self, sandbox_id: str | None = None, *, after: int = 0, last: int | None = None) -> builtins.list[EventRecord]:
        """What happened to one sandbox, or to all; also of one that is gone. Without `last`, the next ones after `after`."""
        await self.check_known(sandbox_id)
        if last is None:
            return await self.parts.journal.read_on(self.name, sandbox_id, after)
        return await self.parts.journal.read(self.name, sandbox_id, after=after, last=last)

    def follow(self, sandbox_id: str | None, after: int | None, last: int) -> AsyncIterator[EventRecord | None]:
        return self.parts.journal.follow(self.name, sandbox_id, after, last)

    async def check_known(self, sandbox_id: str | None) -> None:
        if sandbox_id is not None and not await self.parts.journal.had(self.name, sandbox_id):
            await self.get(sandbox_id)
