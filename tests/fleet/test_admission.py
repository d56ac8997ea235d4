"""Room is promised once, and too many starts are refused before they begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import pytest_asyncio

from belljar.errors import BelljarError, HostBusy, HostDiskShort, HostMemoryShort
from belljar.fleet.admission import check_room, meminfo
from belljar.fleet.context import Context, Wish
from belljar.fleet.origins import template_origin
from belljar.fleet.queueing import StartQueue
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from tests.conftest import borrowed_home


@pytest_asyncio.fixture
async def strict(own_settings: Settings) -> AsyncIterator[Fleet]:
    """A fleet that promises no more than there is."""
    with borrowed_home(own_settings) as home:
        settings = replace(own_settings, home=home, memory_oversubscription=1.0, host_memory_reserve_mib=0)
        async with await Fleet.open(settings, maintain=False) as fleet:
            yield fleet


async def test_starts_at_the_same_moment_are_not_promised_the_same_memory(strict: Fleet) -> None:
    origin = await template_origin(strict._context, "base")
    fits = (meminfo()["MemTotal"] >> 20) // origin.manifest.memory_mib

    def admit(_: int) -> bool:
        try:
            strict.starts._admit(origin, Wish({}, {}, None), origin.manifest.disk_mib, "creating")
        except HostMemoryShort as problem:
            assert "memory_oversubscription" in problem.message
            return False
        return True

    try:
        with ThreadPoolExecutor(16) as threads:
            outcomes = list(threads.map(admit, range(fits + 20)))
        assert sum(outcomes) == fits == len(strict._context.records.list_sandboxes())
    finally:
        origin.image.close()


def room(context: Context, **wishes: int) -> BelljarError | None:
    try:
        check_room(context, **{"machines": 1, "memory_mib": 1, "new_bytes": 0, "disk_bytes": 0, **wishes})
    except BelljarError as problem:
        return problem
    return None


async def test_what_is_being_woken_counts_and_disks_are_promised_too(strict: Fleet) -> None:
    context = strict._context
    total_mib = meminfo()["MemTotal"] >> 20
    assert room(context, memory_mib=total_mib) is None
    context.waking["sb-1"] = 2
    assert isinstance(room(context, memory_mib=total_mib), HostMemoryShort)
    context.waking.clear()
    promise = 2**33
    refused = room(context, disk_mib=promise)
    assert isinstance(refused, HostDiskShort) and "disk_oversubscription" in refused.message and refused.status == 507
    assert room(context, disk_mib=1024) is None


async def test_the_queue_is_bounded_and_a_place_is_given_back() -> None:
    queue = StartQueue(parallel=2, max_waiting=1)
    ran = 0

    async def start(count: int = 1) -> None:
        nonlocal ran
        with queue.admitted(count):
            async with queue.turns:
                await asyncio.sleep(0.01)
                ran += 1

    outcomes = await asyncio.gather(*(start() for _ in range(10)), return_exceptions=True)
    refused = [problem for problem in outcomes if isinstance(problem, HostBusy)]
    assert (ran, len(refused), queue.due) == (3, 7, 0)
    assert {(problem.status, problem.retry, problem.details["retry_after_s"]) for problem in refused} == {(503, "yes", 2)}
    await start(16)  # a fork of many is one wish, and an idle host has room for it
    assert queue.due == 0


async def test_a_full_queue_refuses_a_create_before_anything_exists(strict: Fleet) -> None:
    strict.queue = StartQueue(1, 1)
    with strict.queue.admitted(2), pytest.raises(HostBusy, match="no compute capacity available"):
        await strict.create("base")
    assert strict._context.records.list_sandboxes() == [] and not list(strict._context.layout.sandboxes.iterdir())


async def test_machines_started_ahead_give_way_to_those_that_are_wanted(strict: Fleet) -> None:
    context = strict._context
    context.settings = replace(context.settings, pool_size=1)
    await strict.filled("base")
    (ahead,) = context.records.list_sandboxes()
    assert ahead.state == "pooled"
    # Room for one machine, which is the one that waits: what is wanted is another, with a larger disk.
    total_mib = meminfo()["MemTotal"] >> 20
    context.waking["others"] = total_mib - ahead.memory_mib
    wanted = await strict.create("base", disk_mib=ahead.disk_mib + 1024)
    try:
        assert [record.id for record in context.records.list_sandboxes()] == [wanted.id]
        with pytest.raises(HostMemoryShort):
            await strict.create("base", disk_mib=ahead.disk_mib + 1024)
    finally:
        await wanted.kill()
        context.waking.clear()
