"""Programs that fail, hang or are missing end in errors that say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import BuildFailed, HostSetup
from belljar.templates.steps import find_program, run_step


def test_output_is_returned_and_progress_told() -> None:
    told: list[str] = []
    assert run_step("greet", ["sh", "-c", "echo one; echo two >&2"], progress=told.append) == ["one", "two"]
    assert len(told) == 1 and told[0].startswith("greet: ")


def test_a_failure_carries_the_step_and_the_last_lines() -> None:
    with pytest.raises(BuildFailed, match=r"unpack failed \(exit code 3\)") as caught:
        run_step("unpack", ["sh", "-c", "seq 1000; exit 3"], progress=lambda _: None)
    assert "1000" in caught.value.message and "\n1\n" not in caught.value.message
    assert caught.value.details == {"step": "unpack", "exit_code": 3}


def test_a_step_that_does_not_end_is_killed_with_its_children() -> None:
    with pytest.raises(BuildFailed, match="no end after"):
        run_step("hang", ["sh", "-c", "sleep 600 & sleep 600"], progress=lambda _: None, deadline_s=0.2)


def test_a_missing_program_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("belljar.templates.steps.shutil.which", lambda *_, **__: None)
    with pytest.raises(HostSetup, match="apt-get install e2fsprogs"):
        find_program("mke2fs")
