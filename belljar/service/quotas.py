"""What a workspace may have: counted and promised in one step, before anything of it exists.

Whoever is about to make something takes a ticket. What a ticket was promised counts until the ticket is given back, and the records
that were made on it (it has claimed their ids) do not count beside it. So a call is never counted twice, and never not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

from belljar.errors import QuotaExceeded
from belljar.settings import Settings
from belljar.store.db import Records
from belljar.store.quotas import QuotaRecord
from belljar.store.quotas import Quotas as QuotaTable

# States in which a sandbox holds memory. A dead one holds nothing at all, and a pooled one is nobody's yet.
AWAKE = ("creating", "running", "paused", "ending")
NOT_COUNTED = ("dead", "pooled")


@dataclass(frozen=True)
class Limits:
    """What a workspace may have and do; 0 is no limit."""

    sandboxes: int
    memory_mib: int
    disk_mib: int
    rate_per_s: float
    rate_burst: int


@dataclass(frozen=True)
class Usage:
    """What a workspace has: sandboxes, the memory of those awake, all their disks and the snapshots."""

    sandboxes: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(eq=False)
class Ticket:
    """What one call was promised. `woken` sandboxes have their disks already: only their memory is new."""

    quotas: Quotas
    workspace: str
    held: Usage = field(default_factory=Usage)
    claimed: set[str] = field(default_factory=set)
    woken: set[str] = field(default_factory=set)

    async def admit(self, machines: int, memory_mib: int, disk_mib: int) -> None:
        """Room for so many new sandboxes of that size, or QuotaExceeded."""
        await self.quotas.hold(self, Usage(machines, machines * memory_mib, machines * disk_mib))

    async def admit_waking(self, sandbox_id: str, memory_mib: int) -> None:
        self.woken.add(sandbox_id)
        await self.quotas.hold(self, Usage(memory_mib=memory_mib))

    async def admit_bytes(self, size: int) -> None:
        """Room for a snapshot of that size; every one takes a MiB at least. Asked again, it may have grown."""
        await self.quotas.hold(self, Usage(disk_mib=_mib(size) - self.held.disk_mib))

    def claim(self, sandbox_id: str) -> None:
        """This sandbox is made on this ticket. Called before its record can be seen."""
        self.claimed.add(sandbox_id)


class Quotas:
    """The limits of all workspaces of one home, and what is promised to calls under way. One process enforces them."""

    def __init__(self, settings: Settings, records: Records) -> None:
        self._records = records
        self._table = QuotaTable(records.database)
        self._own: dict[str, QuotaRecord] = {}
        self._tickets: dict[str, set[Ticket]] = {}
        self._lock = asyncio.Lock()
        self._default = Limits(
            settings.quota_sandboxes,
            settings.quota_memory_mib,
            settings.quota_disk_mib,
            settings.quota_rate_per_s,
            settings.quota_rate_burst,
        )

    async def load(self) -> None:
        self._own = await asyncio.to_thread(self._table.all)

    def limits(self, workspace: str) -> Limits:
        own = self._own.get(workspace, QuotaRecord())
        given = {each.name: getattr(own, each.name) for each in fields(own)}
        return replace(self._default, **{name: value for name, value in given.items() if value is not None})

    def own(self, workspace: str) -> QuotaRecord:
        """What was set for this workspace alone."""
        return self._own.get(workspace, QuotaRecord())

    async def change(self, workspace: str, record: QuotaRecord) -> None:
        """Holds from now on; what the workspace has already stays."""
        await asyncio.to_thread(self._table.put, workspace, record)
        self._own[workspace] = record

    async def usage(self, workspace: str) -> Usage:
        # As they are before the records are read: one that is given back meanwhile counts, instead of what was made on it.
        tickets = list(self._tickets.get(workspace, ()))
        sizes, snapshots = await asyncio.to_thread(self._records.sizes, workspace)
        claimed = set[str]().union(*(ticket.claimed for ticket in tickets))
        woken = set[str]().union(*(ticket.woken for ticket in tickets))
        used = Usage(disk_mib=sum(_mib(size) for size in snapshots))
        for size in sizes:
            if size.state not in NOT_COUNTED and size.id not in claimed:
                awake = size.state in AWAKE and size.id not in woken
                used += Usage(1, size.memory_mib if awake else 0, size.disk_mib)
        return sum((ticket.held for ticket in tickets), used)

    @contextmanager
    def ticket(self, workspace: str) -> Iterator[Ticket]:
        ticket = Ticket(self, workspace)
        tickets = self._tickets.setdefault(workspace, set())
        tickets.add(ticket)
        try:
            yield ticket
        finally:
            tickets.discard(ticket)

    async def hold(self, ticket: Ticket, more: Usage) -> None:
        """Promise more to a ticket, or raise QuotaExceeded: one at a time, so that no room is promised twice."""
        limits = self.limits(ticket.workspace)
        async with self._lock:
            if limits.sandboxes or limits.memory_mib or limits.disk_mib:
                _check(await self.usage(ticket.workspace), more, limits)
            ticket.held += more


def _check(used: Usage, more: Usage, limits: Limits) -> None:
    names = {
        "sandboxes": ("max sandboxes reached", "", "delete one first"),
        "memory_mib": ("max memory reached", " MiB of memory awake", "delete, or hibernate, one first"),
        "disk_mib": ("max disk reached", " MiB of disks and snapshots", "delete a sandbox or a snapshot first"),
    }
    for name, (message, unit, advice) in names.items():
        has, asked, limit = (getattr(each, name) for each in (used, more, limits))
        if limit and asked and has + asked > limit:
            raise QuotaExceeded(
                f"{message}: the workspace has {has}{unit}, {asked} more would be too many, and its quota is {limit}; {advice}",
                quota=name,
            )


def _mib(size: int) -> int:
    return -(-size >> 20)
