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
from belljar.service import lifecycle
from belljar.service.activity import Activity
from belljar.service.journal import Journal
from belljar.service.logs import Logs
from belljar.service.quotas import Quotas
from belljar.service.workspace import Parts, Workspace
from belljar.settings import load_settings
from belljar.store.db import Records, SandboxRecord
from belljar.store.events import Events
from belljar.store.layout import Layout


class Listed:
    """Something in the guest that can be listed."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def list(self) -> list[Any]:
        await self.answers.wait()
        return self.items


class FakeSandbox:
    """Sleeps and wakes when told; going to sleep takes until `asleep` is set."""

    def __init__(self, records: Records, record: SandboxRecord) -> None:
        self.id, self.record, self._records = record.id, record, records
        self.contexts, self.processes = Listed(), Listed()
        self.dozing, self.asleep = asyncio.Event(), asyncio.Event()

    @property
    def attached(self) -> bool:
        return self._records.get_sandbox(self.record.id).state == "running"

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

    settings = replace(load_settings(), idle_timeout_s=0.0)
    fleet: Any = SimpleNamespace(handle=lambda record: sandbox)
    journal = Journal(Events(records.database))
    quotas = Quotas(settings, records)
    made = Parts(settings, fleet, records, Activity(), journal, Logs(Layout(tmp_path)), quotas)
    yield SimpleNamespace(sandbox=sandbox, parts=made)
    records.close()


async def test_a_sandbox_in_use_does_not_go_to_sleep(parts: Any) -> None:
    workspace = Workspace(parts.parts, "w")
    parts.sandbox.asleep.set()
    async with workspace.guest("sb"), workspace.guest("sb", "stream"):
        assert not await lifecycle.hibernate_idle(workspace, "sb")
        life = await lifecycle.show(workspace, "sb")
        assert (life.calls, life.streams, life.hibernates_at) == (1, 1, None)
        assert life.reason == "in use: 1 call and 1 open stream"
    assert (await lifecycle.show(workspace, "sb")).hibernates_in_s == 0
    assert await lifecycle.hibernate_idle(workspace, "sb")
    assert (await workspace.get("sb")).state == "hibernated"
    assert (await lifecycle.show(workspace, "sb")).reason == "not used for 0 s"
    assert not await lifecycle.hibernate_idle(workspace, "sb")


async def test_why_it_sleeps_is_known_before_the_event_is_written(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, written = Workspace(parts.parts, "w"), asyncio.Event()
    parts.sandbox.asleep.set()
    await parts.parts.journal.note(await workspace.get("sb"), "sandbox.hibernated", reason="an older one")
    await parts.parts.journal.note(await workspace.get("sb"), "sandbox.woken")

    async def later(self: Journal, *_: object, **__: object) -> None:
        await written.wait()

    monkeypatch.setattr(Journal, "note", later)
    falling_asleep = asyncio.ensure_future(lifecycle.hibernate_idle(workspace, "sb"))
    while (await workspace.get("sb")).state != "hibernated":
        await asyncio.sleep(0.01)
    assert (await lifecycle.show(workspace, "sb")).reason == "not used for 0 s"
    written.set()
    assert await falling_asleep


CELL = SimpleNamespace(id="c1-1", state="busy", queued=0)
QUEUE = SimpleNamespace(id="c1-1", state="starting", queued=1)
FOREGROUND = SimpleNamespace(id="p1-1", running=True, background=False)
BACKGROUND = SimpleNamespace(id="p1-2", running=True, background=True, pty=True)
ENDED = SimpleNamespace(id="p1-3", running=False, background=False)


@pytest.mark.parametrize(("context", "process"), [(CELL, None), (QUEUE, None), (None, FOREGROUND)])
async def test_work_that_outlived_its_caller_keeps_the_sandbox_awake(parts: Any, context: Any, process: Any) -> None:
    workspace = Workspace(parts.parts, "w")
    parts.sandbox.asleep.set()
    parts.sandbox.contexts.items = [context] if context else []
    parts.sandbox.processes.items = [process] if process else []
    assert not await lifecycle.hibernate_idle(workspace, "sb")
    life = await lifecycle.show(workspace, "sb")
    assert (process or context).id in life.reason and life.hibernates_at is None
    parts.sandbox.contexts.items, parts.sandbox.processes.items = [], []
    assert await lifecycle.hibernate_idle(workspace, "sb")


async def test_rest_is_counted_from_the_end_of_such_work(parts: Any) -> None:
    patient = replace(parts.parts, settings=replace(parts.parts.settings, idle_timeout_s=3600.0))
    workspace = Workspace(patient, "w")
    parts.sandbox.asleep.set()
    parts.sandbox.contexts.items = [CELL]
    patient.activity.note_work("sb", "a cell is running")
    assert not await lifecycle.hibernate_idle(workspace, "sb") and patient.activity.works("sb")
    parts.sandbox.contexts.items = []
    assert not await lifecycle.hibernate_idle(workspace, "sb") and not patient.activity.works("sb")
    assert 3500 < ((await lifecycle.show(workspace, "sb")).hibernates_in_s or 0) <= 3600


async def test_background_processes_and_those_that_ended_do_not(parts: Any) -> None:
    workspace = Workspace(parts.parts, "w")
    parts.sandbox.asleep.set()
    parts.sandbox.processes.items = [BACKGROUND, ENDED]
    assert await lifecycle.hibernate_idle(workspace, "sb")


async def test_a_guest_that_does_not_answer_is_busy(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "ASK_DEADLINE_S", 0.01)
    workspace = Workspace(parts.parts, "w")
    parts.sandbox.asleep.set()
    parts.sandbox.contexts.answers.clear()
    assert not await lifecycle.hibernate_idle(workspace, "sb")
    assert "busy" in (await lifecycle.show(workspace, "sb")).reason


async def test_a_call_that_meets_one_falling_asleep_waits_and_wakes_it(parts: Any) -> None:
    workspace = Workspace(parts.parts, "w")
    sleep = asyncio.create_task(lifecycle.hibernate_idle(workspace, "sb"))
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
    assert not parts.parts.activity.uses("sb")


def test_what_is_gone_is_forgotten_unless_someone_waits_on_it() -> None:
    activity = Activity()
    activity.touch("idle")
    with activity.using("busy"):
        activity.keep([])
        assert activity.uses("busy") == {"call": 1}
    activity.keep(["busy"])
    assert activity.idle_s("busy") >= 0
