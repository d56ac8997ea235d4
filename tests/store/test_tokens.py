"""Tokens and events: what is remembered of who may call, and of what happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.errors import AlreadyExists
from belljar.store import events as events_module
from belljar.store.database import Database
from belljar.store.events import Events
from belljar.store.tokens import TokenRecord, Tokens


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "belljar.db")
    yield opened
    opened.close()


def token(name: str, workspace: str = "w", expires_at: float | None = None) -> TokenRecord:
    return TokenRecord(f"hash-{name}", f"pds_{name}", "label", workspace, False, 1.0, expires_at)


def test_tokens_are_found_by_hash_and_revoked_by_prefix_within_a_workspace(database: Database) -> None:
    tokens = Tokens(database)
    assert tokens.insert(token("a")) == tokens.find("hash-a")
    tokens.insert(token("b", "other", 7.0))
    assert tokens.find("pds_a") is None and tokens.find("\ud800") is None
    assert [record.prefix for record in tokens.list()] == ["pds_a", "pds_b"]
    assert [record.prefix for record in tokens.list("other")] == ["pds_b"]
    assert not tokens.delete("pds_b", "w")
    assert tokens.delete("pds_b", "other") and not tokens.delete("pds_b")
    with pytest.raises(AlreadyExists):
        tokens.insert(token("a"))


def test_events_are_read_in_order_and_after_the_last_one_seen(database: Database) -> None:
    events = Events(database)
    first = events.add("w", "sb", "created", {"n": 1})
    second = events.add("w", "sb", "killed")
    other = events.add("v", "sc", "created")
    assert events.of_sandbox("sb") == [first, second]
    assert events.of_sandbox("sb", last=1) == [second]
    assert events.of_workspace("w", after=first.seq) == [second]
    assert events.of_workspace("v") == [other]
    assert events.has("sb", "killed") and not events.has("sc", "killed")


def test_old_events_are_forgotten(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "KEPT", 3)
    events = Events(database)
    for _ in range(10):
        last = events.add("w", "sb", "created")
    assert [event.seq for event in events.of_sandbox("sb")] == [last.seq - 2, last.seq - 1, last.seq]
