"""Files that a cell touches."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.kernel import changes
from belljar.kernel.changes import FilesBefore


def test_files_that_were_made_changed_and_removed_are_told(tmp_path: Path) -> None:
    for name in ("kept", "changed", "removed"):
        (tmp_path / name).write_text("1")
    before = FilesBefore(str(tmp_path))
    (tmp_path / "changed").write_text("22")
    (tmp_path / "removed").unlink()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new").write_text("333")
    assert before.compare() == {
        "added": [{"path": str(tmp_path / "deep/er/new"), "size": 3}],
        "changed": [{"path": str(tmp_path / "changed"), "size": 2}],
        "removed": [str(tmp_path / "removed")],
        "complete": True,
    }


def test_the_trees_of_tools_are_not_looked_at(tmp_path: Path) -> None:
    before = FilesBefore(str(tmp_path))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [file["path"] for file in before.compare()["added"]] == [str(tmp_path / "loop")]


def test_a_tree_too_large_is_said_to_be_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_ENTRIES", 5)
    before = FilesBefore(str(tmp_path))
    for number in range(9):
        (tmp_path / str(number)).write_text("")
    told = before.compare()
    assert len(told["added"]) == 5 and not told["complete"]


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    before = FilesBefore(str(tmp_path / "gone"))
    assert before.compare() == {"added": [], "changed": [], "removed": [], "complete": False}
