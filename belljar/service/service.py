"""The service over one home: opened once per process, closed with it. Sandboxes live on in between."""

from __future__ import annotations

import asyncio

from belljar.errors import TemplateNotFound
from belljar.fleet.sandboxes import Fleet
from belljar.service.access import Access
from belljar.service.activity import Activity
from belljar.service.amending import amend_journal
from belljar.service.denials import Denials
from belljar.service.egress import attach_all
from belljar.service.housekeeping import Housekeeping
from belljar.service.journal import Journal
from belljar.service.links import Links, load_key
from belljar.service.logs import Logs
from belljar.service.previews import Previews
from belljar.service.quotas import Quotas
from belljar.service.rates import Rates
from belljar.service.workspace import Parts, Workspace
from belljar.settings import Settings
from belljar.store.db import Records
from belljar.store.events import Events
from belljar.store.layout import Layout
from belljar.store.ports import SharedPorts
from belljar.store.tokens import Tokens
from belljar.templates.bake import TemplateInfo, list_templates


class Service:
    """All workspaces of this host. `open` it and `aclose` it."""

    def __init__(self, parts: Parts, access: Access, previews: Previews) -> None:
        self.parts = parts
        self.access = access
        self.previews = previews
        self.settings = parts.settings
        self.rates = Rates(parts.quotas.limits)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, settings: Settings) -> Service:
        """Open the home: what outlived its time ends now, everything else is found again."""
        records = await asyncio.to_thread(_open_records, settings)
        try:
            key = await asyncio.to_thread(load_key, Layout(settings.home).preview_key)
            before = {record.id: record for record in await asyncio.to_thread(records.list_sandboxes)}
            fleet = await Fleet.open(settings, maintain=False)
        except BaseException:
            await asyncio.to_thread(records.close)
            raise
        journal, logs, quotas = Journal(Events(records.database)), Logs(Layout(settings.home)), Quotas(settings, records)
        parts = Parts(settings, fleet, records, Activity(), journal, logs, quotas)
        await quotas.load()
        previews = Previews(parts, SharedPorts(records.database), Links(key))
        service = cls(parts, Access(Tokens(records.database)), previews)
        housekeeping = Housekeeping(parts, before)
        await housekeeping.tell_swept(before, fleet.swept)
        await amend_journal(parts)
        denials = Denials(parts.journal, records)
        fleet.watch_denials(denials.take)
        service._tasks.append(asyncio.create_task(housekeeping.run(), name="housekeeping"))
        service._tasks.append(asyncio.create_task(denials.run(), name="denials"))
        service._tasks.append(asyncio.create_task(attach_all(fleet), name="attach"))
        return service

    async def aclose(self) -> None:
        """Let go of everything; sandboxes live on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.parts.logs.aclose()
        await self.parts.fleet.aclose()
        await asyncio.to_thread(self.parts.records.close)

    def workspace(self, name: str) -> Workspace:
        return Workspace(self.parts, name)

    async def templates(self) -> list[TemplateInfo]:
        """Those that sandboxes can be created from. All workspaces share them."""
        return [info for info in await asyncio.to_thread(list_templates, self.settings) if info.digest]

    async def template(self, name: str) -> TemplateInfo:
        for info in await self.templates():
            if name in (info.name, *info.aliases):
                return info
        raise TemplateNotFound(f"no template {name[:80]!r}")

    def probe_disk(self) -> None:
        """Raises if nothing can be written under the home. Blocks."""
        Layout(self.settings.home).probe()


def _open_records(settings: Settings) -> Records:
    layout = Layout(settings.home)
    layout.prepare()
    return Records(layout.database)
