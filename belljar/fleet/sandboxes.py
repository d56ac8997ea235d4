"""All sandboxes of this host: create them, find them again, end them.

    create = admission -> origin (template or snapshot) -> record and folder -> restore -> thaw -> answer

Nothing depends on this process: another one that opens the same home finds every sandbox and goes on with it.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from belljar.egress.log import Connection
from belljar.egress.outlet import Ground
from belljar.egress.policy import parse_policy
from belljar.egress.secrets import parse_secrets
from belljar.errors import BelljarError, HostDiskShort, InvalidInput, SandboxNotFound, SnapshotNotFound
from belljar.fleet.admission import check_shape
from belljar.fleet.checks import check_env, check_metadata
from belljar.fleet.context import Context, Ticket, Wish
from belljar.fleet.images import ImageCache
from belljar.fleet.launching import Running, remove_folder
from belljar.fleet.origins import snapshot_origin, template_origin
from belljar.fleet.queueing import StartQueue
from belljar.fleet.recovery import UNFINISHED, SweepReport, end_process, sweep
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.starting import Starts, trusting
from belljar.settings import Settings
from belljar.store.db import Records, SandboxRecord, SnapshotRecord
from belljar.store.layout import Layout
from belljar.templates.bake import host_facts
from belljar.templates.kernel import build_kernel

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 5.0
MAX_TTL_S = 10 * 365 * 24 * 3600.0
# Restores are short and mostly CPU: more at a time than this only makes each of them slower.
PARALLEL_STARTS = max(2, (os.cpu_count() or 2))


class Fleet:
    """The sandboxes under one home. `open` it, and `aclose` it: the sandboxes live on."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._handles: dict[str, Sandbox] = {}
        self.queue = StartQueue(PARALLEL_STARTS, context.settings.max_queued_starts)
        self.starts = Starts(context, self.queue, self.hold)
        self._tasks: list[asyncio.Task[None]] = []
        self.swept = SweepReport()  # what was cleaned away when it was opened

    @classmethod
    async def open(cls, settings: Settings, *, maintain: bool = True) -> Fleet:
        """Open the home. With `maintain`, expired sandboxes are ended while this process lives; both kinds clean up once now."""
        fleet = cls(await asyncio.to_thread(_make_context, settings))
        fleet.swept = await fleet.sweep()
        if maintain:
            fleet._tasks.append(asyncio.create_task(fleet._maintain(), name="maintain"))
        return fleet

    async def aclose(self) -> None:
        """Let go of everything; sandboxes live on, machines started ahead do not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.starts.pool.aclose()
        for sandbox in list(self._handles.values()):
            await sandbox.detach()
        self._context.images.close()
        await asyncio.to_thread(self._context.records.close)

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- create -------------------------------------------------------------------------------------------------------------

    async def create(
        self,
        template: str = "base",
        *,
        snapshot: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ttl_s: float | None = None,
        vcpus: int | None = None,
        memory_mib: int | None = None,
        disk_mib: int | None = None,
        workspace: str = "default",
        persistent: bool = False,
        ticket: Ticket | None = None,
        egress: object = None,
        egress_secrets: Iterable[Mapping[str, str]] | None = None,
    ) -> Sandbox:
        """A new sandbox from a template, or from a snapshot. It has answered when this returns.

        `egress` is what it may connect to: a mode, a list of what is allowed, or a whole policy. Without it, that of the
        snapshot, of the template, or of the settings counts. `egress_secrets` are mappings with host, header and value.
        `workspace` and `persistent` are kept in its record for whoever looks after it; the fleet itself does not use them.
        A `ticket` is asked once the size is known, and may refuse.
        """
        wish = Wish(
            check_env(env or {}),
            check_metadata(metadata),
            _expiry(ttl_s),
            origin_snapshot=snapshot,
            ttl_s=ttl_s,
            workspace=workspace,
            persistent=persistent,
            ticket=ticket,
            egress=parse_policy(egress).to_json() if egress is not None else {},
            egress_secrets=parse_secrets(egress_secrets).to_json() if egress_secrets is not None else {},
        )
        context = self._context
        origin = await (template_origin(context, template) if snapshot is None else snapshot_origin(context, snapshot))
        try:
            if snapshot is not None:
                saved = await asyncio.to_thread(context.records.get_snapshot, snapshot)
                if egress_secrets is None:
                    wish = replace(wish, egress_secrets=saved.egress_secrets)
                if egress is None:
                    wish = replace(wish, egress=saved.egress)
            elif egress is None:
                wish = replace(wish, egress=origin.manifest.egress)
            disk = check_shape(origin.manifest, vcpus, memory_mib, disk_mib)
            if ticket is not None:
                await ticket.admit(1, origin.manifest.memory_mib, disk)
            if snapshot is None and disk == origin.manifest.disk_mib and (ready := await self.starts.pool.take(origin, wish)):
                return await trusting(ready)
            with self.queue.admitted():
                return await self.starts.launch(origin, wish, disk)
        finally:
            origin.image.close()

    def hold(self, record: SandboxRecord, running: Running) -> Sandbox:
        sandbox = self._handles[record.id] = Sandbox(self, self._context, record, running)
        return sandbox

    def watch_denials(self, told: Callable[[str, Connection], None]) -> None:
        """`told` is called with a sandbox's id and each connection that is refused to it. It must not wait for anything."""
        self._context.on_denied = told

    async def filled(self, template: str) -> None:
        """Wait until as many machines of a template as the settings ask for are started ahead."""
        origin = await template_origin(self._context, template)
        try:
            await self.starts.pool.fill(origin)
        finally:
            origin.image.close()

    # -- find ---------------------------------------------------------------------------------------------------------------

    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox with that id; nothing is attached or woken by asking."""
        if not isinstance(sandbox_id, str):
            raise InvalidInput(f"a sandbox id is text, not {type(sandbox_id).__name__}")
        record = await asyncio.to_thread(self._context.records.find_sandbox, sandbox_id)
        if record is None or record.state in UNFINISHED:
            raise SandboxNotFound(f"no sandbox {sandbox_id[:80]!r}; `belljar ps` shows those there are")
        return self.handle(record)

    def handle(self, record: SandboxRecord) -> Sandbox:
        """The same for whoever has just read the record, and need not read it twice."""
        if record.id not in self._handles:
            self._handles[record.id] = Sandbox(self, self._context, record)
        return self._handles[record.id]

    async def list(self, metadata: Mapping[str, str] | None = None) -> builtins.list[SandboxRecord]:
        """All sandboxes, oldest first, or those that carry all of `metadata`."""
        found = await asyncio.to_thread(self._context.records.list_sandboxes, metadata=check_metadata(metadata))
        return [record for record in found if record.state not in UNFINISHED]

    # -- end ----------------------------------------------------------------------------------------------------------------

    async def kill(self, sandbox_id: str) -> None:
        """End a sandbox and everything of it, whoever is attached. Raises SandboxNotFound if there is none."""
        handle = await self.get(sandbox_id)
        await handle.abandon()
        await self.erase(sandbox_id)

    async def erase(self, sandbox_id: str) -> None:
        """No process, no folder, no record: in that order, so that an interrupted end can be finished by the next sweep."""
        folder = self._context.layout.sandbox(sandbox_id)
        try:
            await asyncio.to_thread(self._context.records.update_sandbox, sandbox_id, state="ending")
        except (SandboxNotFound, HostDiskShort):
            pass  # where there is no room for a note, an end makes some
        await end_process(folder)
        await asyncio.to_thread(remove_folder, folder)
        await asyncio.to_thread(self._context.records.delete_sandbox, sandbox_id)
        self._handles.pop(sandbox_id, None)

    async def bury(self, sandbox_id: str, reason: str) -> None:
        """Keep the record of a sandbox that died, with the reason, and free everything else of it."""
        await end_process(self._context.layout.sandbox(sandbox_id))
        try:
            await asyncio.to_thread(self._context.records.update_sandbox, sandbox_id, state="dead", reason=reason[:4000])
        except SandboxNotFound:
            pass  # killed at the same moment
        await asyncio.to_thread(remove_folder, self._context.layout.sandbox(sandbox_id))

    async def sweep(self) -> SweepReport:
        """End what has expired, and remove what belongs to nobody."""
        return await sweep(self._context, self)

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.sweep()
            except BelljarError as problem:
                log.warning("clean-up failed and is tried again: %s", problem.message)
            except Exception:  # without this task nothing would expire any more
                log.exception("clean-up failed and is tried again")

    # -- snapshots ----------------------------------------------------------------------------------------------------------

    async def snapshots(self, metadata: Mapping[str, str] | None = None) -> builtins.list[SnapshotRecord]:
        return await asyncio.to_thread(self._context.records.list_snapshots, metadata=check_metadata(metadata))

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot; sandboxes made from it go on."""
        records, folder = self._context.records, self._context.layout.snapshot
        try:
            known = isinstance(snapshot_id, str) and await asyncio.to_thread(records.delete_snapshot, snapshot_id)
        except HostDiskShort:  # the files first, then: they make the room that the record's end takes
            await asyncio.to_thread(records.get_snapshot, snapshot_id)
            await asyncio.to_thread(remove_folder, folder(snapshot_id))
            known = await asyncio.to_thread(records.delete_snapshot, snapshot_id)
        if not known:
            raise SnapshotNotFound(f"no snapshot {snapshot_id!r}; `belljar snapshot list` shows those there are")
        self._context.images.forget(f"snapshot {snapshot_id}")
        await asyncio.to_thread(remove_folder, folder(snapshot_id))


def _make_context(settings: Settings) -> Context:
    ground = Ground.of(settings)
    layout = Layout(settings.home)
    layout.prepare()
    kernel = build_kernel(layout, log.info)
    facts = host_facts(settings, layout, kernel)
    return Context(settings, layout, Records(layout.database), facts, ImageCache(), ground=ground)


def _expiry(ttl_s: float | None) -> float | None:
    if ttl_s is None:
        return None
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or math.isnan(ttl_s) or not 0 < ttl_s <= MAX_TTL_S:
        raise InvalidInput(f"ttl_s must be a number of seconds, more than 0 and at most ten years, not {ttl_s!r}")
    return time.time() + ttl_s
