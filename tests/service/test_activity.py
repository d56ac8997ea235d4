"""Who uses a sandbox decides whether it may sleep, and no call ever meets one that is falling asleep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from belljar.errors import SandboxNotFound, WrongState
from belljar.service.activity import Activity
from belljar.service.journal import Journal
from belljar.service.workspace import Parts, Workspace
from belljar.settings import load_settings
from belljar.store.db import Records, SandboxRecord
from belljar.store.events import Events


class FakeSandbox:
    """Sleeps and wakes when told; going to sleep takes until `asleep` is set."""

    def __init__(self, records: Records, record: SandboxRecord) -> None:
        self.record, self._records = record, records
        self.dozing, self.asleep = asyncio.Event(), asyncio.Event()

    async def hibernate(self) -> None:
        self.dozing.set()
        await self.asleep.wait()
        self.record = self._records.update_sandbox(self.record.id, state="hibernated")

    async def wake(self) -> None:
        self.record = self._records.update_sandbox(self.record.id, state="running")


@pytest_asyncio.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Any]:
    records = Records(tmp_path / "belljar.db")
    record = SandboxRecord("sb", "base", "d", "running", 1.0, 1, 128, 128, workspace="w", persistent=True)
    sandbox = FakeSandbox(records, records.insert_sandbox(record))

    async def get(sandbox_id: str) -> FakeSandbox:
        return sandbox

    settings = replace(load_settings(), idle_timeout_s=0.0)
    fleet: Any = SimpleNamespace(get=get)
    yield SimpleNamespace(
        sandbox=sandbox, parts=Parts(settings, fleet, records, Activity(), Journal(Events(records.database)))
    )
    records.close()


async def test_a_sandbox_in_use_does_not_go_to_sleep(parts: Any) -> None:
    workspace = Workspace(parts.parts, "w")
    parts.sandbox.asleep.set()
    async with workspace.guest("sb"):
        assert not await workspace.hibernate_idle("sb")
        assert (await workspace.lifecycle("sb")).in_flight == 1
    assert await workspace.hibernate_idle("sb")
    assert (await workspace.get("sb")).state == "hibernated"
    assert not await workspace.hibernate_idle("sb")


async def test_a_call_that_meets_one_falling_asleep_waits_and_wakes_it(parts: Any) -> None:
    workspace = Workspace(parts.parts, "w")
    sleep = asyncio.create_task(workspace.hibernate_idle("sb"))
    await parts.sandbox.dozing.wait()

    async def call() -> str:
        async with workspace.guest("sb") as sandbox:
            return sandbox.record.state

    calls = [asyncio.create_task(call()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in calls)
    parts.sandbox.asleep.set()
    assert await sleep
    assert await asyncio.gather(*calls) == ["running"] * 3
    told = [event.type for event in await workspace.events("sb")]
    assert sorted(told) == ["sandbox.hibernated", "sandbox.woken"]


async def test_a_paused_sandbox_stays_paused_and_a_foreign_one_is_not_there(parts: Any) -> None:
    parts.parts.records.update_sandbox("sb", state="paused")
    with pytest.raises(WrongState):
        async with Workspace(parts.parts, "w").guest("sb"):
            pass
    for workspace in (Workspace(parts.parts, "v"), Workspace(parts.parts, "default")):
        with pytest.raises(SandboxNotFound):
            async with workspace.machine("sb"):
                pass
        with pytest.raises(SandboxNotFound):
            await workspace.kill("sb")
        assert await workspace.list() == []
    assert parts.parts.activity.in_flight("sb") == 0


def test_what_is_gone_is_forgotten_unless_someone_waits_on_it() -> None:
    activity = Activity()
    activity.touch("idle")
    with activity.using("busy"):
        activity.keep([])
        assert activity.in_flight("busy") == 1
    activity.keep(["busy"])
    assert activity.idle_s("busy") >= 0
