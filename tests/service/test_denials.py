"""Denials become events, and a guest that is refused all the time does not fill the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from belljar.egress.log import Connection
from belljar.service import denials as module
from belljar.service.denials import MAX_TARGETS, Denials
from belljar.service.journal import Journal
from belljar.store.db import Records, SandboxRecord
from belljar.store.events import EventRecord, Events


class Lab:
    def __init__(self, records: Records) -> None:
        self.events = Events(records.database)
        self.denials = Denials(Journal(self.events), records)

    def refuse(self, name: str = "a.test", sandbox: str = "sb-1") -> None:
        self.denials.take(sandbox, Connection("connect", name, None, 443, "refused", "not on the allow list", "mode allow-list"))

    def told(self, sandbox: str = "sb-1") -> list[EventRecord]:
        return self.events.of_sandbox(sandbox)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    records = Records(tmp_path / "belljar.db")
    for number in (1, 2):
        records.insert_sandbox(SandboxRecord(f"sb-{number}", "base", "d", "running", 1.0, 1, 512, 1024))
    yield Lab(records)
    records.close()


async def test_one_event_a_minute_per_target_with_a_count(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        lab.refuse()
    lab.refuse("b.test")
    await lab.denials.write()
    assert [(event.type, event.payload["name"], event.payload["count"]) for event in lab.told()] == [
        ("egress.denied", "a.test", 3),
        ("egress.denied", "b.test", 1),
    ]
    lab.refuse()
    lab.refuse()
    await lab.denials.write()
    assert len(lab.told()) == 2
    monkeypatch.setattr(module, "AGAIN_AFTER_S", 0.0)
    await lab.denials.write()
    assert lab.told()[-1].payload == {
        "name": "a.test",
        "address": None,
        "port": 443,
        "reason": "not on the allow list",
        "rule": "mode allow-list",
        "count": 2,
    }
    await lab.denials.write()
    assert not lab.denials._targets, "what was told and did not happen again is forgotten"


async def test_names_without_end_are_not_told_without_end(lab: Lab) -> None:
    for number in range(10_000):
        lab.refuse(f"n{number}.test")
    lab.refuse(sandbox="sb-2")
    lab.refuse(sandbox="sb-gone")
    await lab.denials.write()
    assert len(lab.told()) == MAX_TARGETS
    assert len(lab.told("sb-2")) == 1 and not lab.told("sb-gone")
