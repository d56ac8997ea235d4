"""Quotas hold under any concurrency, and nothing is counted twice or not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.errors import QuotaExceeded, RateLimited
from belljar.service.quotas import Limits, Quotas, Usage
from belljar.service.rates import Rates
from belljar.settings import load_settings
from belljar.store.db import Records, SandboxRecord, SnapshotRecord
from belljar.store.quotas import QuotaRecord


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records(tmp_path / "belljar.db")
    yield opened
    opened.close()


def make(records: Records, **limits: int) -> Quotas:
    return Quotas(replace(load_settings({}), **{f"quota_{name}": value for name, value in limits.items()}), records)


def record(name: str, state: str = "running", workspace: str = "w") -> SandboxRecord:
    return SandboxRecord(name, "base", "d", state, 1.0, 2, 2048, 10240, workspace=workspace)


async def create(quotas: Quotas, records: Records, name: str) -> bool:
    """As the fleet does it: asked, claimed, recorded, and running a while later."""
    with quotas.ticket("w") as ticket:
        try:
            await ticket.admit(1, 2048, 10240)
        except QuotaExceeded:
            return False
        ticket.claim(name)
        await asyncio.to_thread(records.insert_sandbox, record(name, "creating"))
        await asyncio.sleep(random.random() / 20)
        await asyncio.to_thread(records.update_sandbox, name, state="running")
        return True


async def test_parallel_creates_yield_exactly_the_quota(records: Records) -> None:
    quotas = make(records, sandboxes=5)
    outcomes = await asyncio.gather(*(create(quotas, records, f"sb-{number}") for number in range(20)))
    assert sum(outcomes) == 5 == len(records.list_sandboxes())


async def test_a_quota_is_used_to_the_last_one_while_things_come_and_go(records: Records) -> None:
    quotas = make(records, sandboxes=4)
    most = 0

    async def come_and_go(number: int) -> int:
        nonlocal most
        refused = 0
        for turn in range(10):
            name = f"sb-{number}-{turn}"
            if await create(quotas, records, name):
                most = max(most, len(records.list_sandboxes()))
                await asyncio.to_thread(records.delete_sandbox, name)
            else:
                refused += 1
        return refused

    assert await asyncio.gather(*(come_and_go(number) for number in range(4))) == [0, 0, 0, 0], "four were always allowed"
    assert most <= 4


async def test_what_counts(records: Records) -> None:
    quotas = make(records)
    for name, state in enumerate(("running", "paused", "hibernated", "dead", "pooled", "creating")):
        records.insert_sandbox(record(f"sb-{name}", state))
    records.insert_sandbox(record("sb-other", workspace="other"))
    for number in range(2):
        records.insert_snapshot(SnapshotRecord(f"snap-{number}", "sb-0", "base", "d", 1.0, 18 * 2**20 + 1))
    assert await quotas.usage("w") == Usage(4, 3 * 2048, 4 * 10240 + 2 * 19)
    assert await quotas.usage("nobody") == Usage()


async def test_waking_takes_memory_and_nothing_else(records: Records) -> None:
    quotas = make(records, sandboxes=1, memory_mib=4096, disk_mib=1)
    for name in ("sb-1", "sb-2"):
        records.insert_sandbox(record(name))
    records.insert_sandbox(record("sb-3", "hibernated"))
    with pytest.raises(QuotaExceeded, match="max memory reached"), quotas.ticket("w") as ticket:
        await ticket.admit_waking("sb-3", 2048)
    records.update_sandbox("sb-1", state="hibernated")
    with quotas.ticket("w") as ticket:
        await ticket.admit_waking("sb-3", 2048)
        records.update_sandbox("sb-3", state="running")
        assert (await quotas.usage("w")).memory_mib == 4096, "one that is being woken counts once"
        with pytest.raises(QuotaExceeded), quotas.ticket("w") as second:
            await second.admit_waking("sb-1", 2048)


async def test_forks_are_admitted_all_or_none_and_snapshots_by_their_size(records: Records) -> None:
    quotas = make(records, sandboxes=3, disk_mib=3 * 10240 + 20)
    records.insert_sandbox(record("sb-1"))
    with quotas.ticket("w") as ticket:
        with pytest.raises(QuotaExceeded, match="max sandboxes reached: the workspace has 1, 3 more"):
            await ticket.admit(3, 2048, 10240)
        await ticket.admit(2, 2048, 10240)
    with quotas.ticket("w") as ticket:
        await ticket.admit(2, 2048, 10240)
        with quotas.ticket("w") as other:
            await other.admit_bytes(1)
            await other.admit_bytes(20 << 20)
        with quotas.ticket("w") as other, pytest.raises(QuotaExceeded, match="max disk reached"):
            await other.admit_bytes((20 << 20) + 1)


async def test_a_workspaces_own_quota_wins_and_survives(records: Records) -> None:
    quotas = make(records, sandboxes=1)
    await quotas.change("w", QuotaRecord(sandboxes=2, rate_per_s=3.5))
    again = make(records, sandboxes=1)
    await again.load()
    for each in (quotas, again):
        assert each.limits("w") == Limits(2, 0, 0, 3.5, 50) and each.limits("other") == Limits(1, 0, 0, 25.0, 50)
        assert each.own("w") == QuotaRecord(sandboxes=2, rate_per_s=3.5) and each.own("other") == QuotaRecord()
    await quotas.change("w", QuotaRecord(sandboxes=0))
    records.insert_sandbox(record("sb-1"))
    assert await create(quotas, records, "sb-2"), "0 is no limit"


def test_a_bucket_gives_a_burst_and_then_the_rate() -> None:
    now = 100.0
    limits = {"w": Limits(0, 0, 0, 2.0, 3), "free": Limits(0, 0, 0, 0, 1)}
    rates = Rates(lambda workspace: limits[workspace], lambda: now)

    def passes(workspace: str = "w") -> bool:
        try:
            rates.take(workspace)
        except RateLimited as problem:
            assert problem.details["retry_after_s"] == 1
            return False
        return True

    assert [passes() for _ in range(5)] == [True, True, True, False, False]
    assert all(passes("free") for _ in range(100)), "no limit, and no other workspace's"
    now += 0.5
    assert [passes() for _ in range(2)] == [True, False]
    now += 1000
    assert [passes() for _ in range(4)] == [True, True, True, False], "a long rest fills the bucket, and no more than that"
    limits["w"] = Limits(0, 0, 0, 0.01, 3)
    with pytest.raises(RateLimited) as caught:
        rates.take("w")
    assert caught.value.details["retry_after_s"] == 100


def test_a_rate_that_is_almost_none_is_still_a_number_of_seconds() -> None:
    rates = Rates(lambda workspace: Limits(0, 0, 0, 5e-324, 1), lambda: 0.0)
    rates.take("w")
    with pytest.raises(RateLimited) as limited:
        rates.take("w")
    assert limited.value.details["retry_after_s"] == 86400
