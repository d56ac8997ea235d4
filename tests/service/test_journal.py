"""The event log as it is followed and amended: none is missed, none comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.service import journal as journal_module
from belljar.service.amending import FOUND, amend_journal
from belljar.service.journal import Journal
from belljar.store.db import Records, SandboxRecord
from belljar.store.events import EventRecord, Events


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records(tmp_path / "belljar.db")
    yield opened
    opened.close()


def record(name: str, state: str = "running") -> SandboxRecord:
    return SandboxRecord(name, "base", "d", state, 1.0, 1, 128, 128, workspace="w")


async def take(source: AsyncIterator[EventRecord | None], count: int) -> list[int]:
    """The numbers of the next events; pauses between them are skipped."""
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            event = await anext(source)
            if event is not None:
                found.append(event.seq)
    return found


@pytest.mark.parametrize("sandbox_id", [None, "sb"])
async def test_whoever_goes_on_misses_none_however_many_there_are(
    records: Records, monkeypatch: pytest.MonkeyPatch, sandbox_id: str | None
) -> None:
    monkeypatch.setattr(journal_module, "BATCH", 10)
    journal = Journal(Events(records.database))
    for _ in range(35):
        await journal.note(record("sb"), "sandbox.paused")
    events: Any = journal.follow("w", sandbox_id, 3, 2)
    async with aclosing(events):
        assert await take(events, 32) == list(range(4, 36))
        for _ in range(25):  # more than one look brings, at once
            await journal.note(record("sb"), "sandbox.resumed")
        assert await take(events, 25) == list(range(36, 61))


async def test_a_follower_from_now_on_gets_nothing_older(records: Records) -> None:
    journal = Journal(Events(records.database))
    for _ in range(5):
        await journal.note(record("sb"), "sandbox.paused")
    events: Any = journal.follow("w", None, None, 0)
    async with aclosing(events):
        waiting = asyncio.ensure_future(take(events, 1))
        await asyncio.sleep(0.2)
        await journal.note(record("sb"), "sandbox.resumed")
        assert await waiting == [6]
    events = journal.follow("w", None, None, 2)
    async with aclosing(events):
        assert await take(events, 2) == [5, 6]


async def told(journal: Journal, name: str) -> list[tuple[str, object]]:
    return [(event.type, event.payload.get("reason")) for event in await journal.read("w", name)]


async def test_what_a_killed_server_did_and_did_not_tell_is_told_once(records: Records) -> None:
    journal = Journal(Events(records.database))
    parts: Any = SimpleNamespace(journal=journal, records=records)
    for name, state in {"slept": "hibernated", "woke": "running", "new": "running", "same": "paused", "half": "creating"}.items():
        records.insert_sandbox(record(name, state))
    for name in ("slept", "woke", "same", "gone", "deleted"):
        await journal.note(record(name), "sandbox.created")
    await journal.note(record("woke"), "sandbox.hibernated")
    await journal.note(record("same"), "sandbox.paused")
    await journal.note(record("deleted"), "sandbox.deleted")
    before = {name: await told(journal, name) for name in ("same", "deleted", "half")}
    for _ in range(2):
        await amend_journal(parts)
        assert (await told(journal, "slept"))[1:] == [("sandbox.hibernated", FOUND)]
        assert (await told(journal, "woke"))[2:] == [("sandbox.woken", FOUND)]
        assert await told(journal, "new") == [("sandbox.created", FOUND)]
        assert (await told(journal, "gone"))[1:] == [("sandbox.deleted", FOUND)]
        assert {name: await told(journal, name) for name in before} == before
