"""Lists by labels and in pages: nothing twice, nothing missed, whatever changes in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.store.db import Records, SandboxRecord, SnapshotRecord
from belljar.store.pages import Page, Place


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records(tmp_path / "belljar.db")
    yield opened
    opened.close()


def sandbox(records: Records, name: str, at: float, *, state: str = "running", workspace: str = "w", **labels: str) -> None:
    records.insert_sandbox(SandboxRecord(name, "base", "d", state, at, 1, 128, 128, metadata=labels, workspace=workspace))


def test_pages_follow_each_other_through_equal_times_and_removals(records: Records) -> None:
    for name in "dbaec":
        sandbox(records, name, 5.0 if name in "abc" else 7.0)
    first = records.list_sandboxes(page=Page(limit=2))
    assert [each.id for each in first] == ["a", "b"]
    records.delete_sandbox("b")
    records.delete_sandbox("d")
    sandbox(records, "aa", 5.0)  # before the place: it belongs to a page that was given out already
    place = Place(first[-1].created_at, first[-1].id)
    assert [each.id for each in records.list_sandboxes(page=Page(limit=2, after=place))] == ["c", "e"]
    assert [each.id for each in records.list_sandboxes(page=Page(after=place))] == ["c", "e"]
    assert records.list_sandboxes(page=Page(limit=2, after=Place(7.0, "e"))) == []


def test_filters_are_all_met_and_counted_before_the_limit(records: Records) -> None:
    for number in range(10):
        state, owner = "paused" if number % 2 else "running", "w" if number < 8 else "v"
        sandbox(records, f"s{number}", float(number), state=state, workspace=owner, odd=str(number % 2), all="yes")
    found = records.list_sandboxes(metadata={"odd": "1", "all": "yes"}, states=["paused"], workspace="w", page=Page(limit=3))
    assert [each.id for each in found] == ["s1", "s3", "s5"]
    assert records.list_sandboxes(metadata={"odd": "1"}, states=["running"]) == [] == records.list_sandboxes(states=[])


def test_labels_are_compared_as_they_are(records: Records) -> None:
    odd = {"a.b": "1", "$": "2", 'quo"te': "it's", "é☃": "ü", "n": "7", "t": "true", "%": "_"}
    sandbox(records, "odd", 1.0, **odd)
    for name, value in odd.items():
        assert [each.id for each in records.list_sandboxes(metadata={name: value})] == ["odd"], name
        assert records.list_sandboxes(metadata={name: value + "x"}) == []
    assert records.list_sandboxes(metadata={"a": "1"}) == [] == records.list_sandboxes(metadata={"N": "7"})
    assert records.list_sandboxes(metadata={"n": "7.0"}) == [] == records.list_sandboxes(metadata={"t": "1"})
    assert records.list_sandboxes(metadata={"n\ud800": "7"}) == []


def test_snapshots_newest_first_of_one_sandbox(records: Records) -> None:
    for number in range(4):
        name = f"snap{number}"
        records.insert_snapshot(SnapshotRecord(name, f"s{number % 2}", "base", "d", float(number), 1, {"n": str(number)}, "w"))
    assert [each.id for each in records.list_snapshots(page=Page(limit=2, newest_first=True))] == ["snap3", "snap2"]
    after = Page(limit=9, after=Place(2.0, "snap2"), newest_first=True)
    assert [each.id for each in records.list_snapshots(page=after)] == ["snap1", "snap0"]
    assert [each.id for each in records.list_snapshots(sandbox_id="s1", workspace="w")] == ["snap1", "snap3"]
    assert records.list_snapshots(workspace="v") == []
