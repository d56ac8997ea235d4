"""What a sandbox costs, asked at a bad moment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from belljar.errors import SandboxGone
from belljar.fleet.costs import anonymous_bytes, host_costs
from belljar.store.manifest import folder_bytes
from belljar.vm.memory import RamMapping
from belljar.vm.spec import PAGE


def test_a_machine_that_has_ended_meanwhile_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(SandboxGone):
        host_costs(RamMapping(child.pid, 0, PAGE), tmp_path)
    with pytest.raises(SandboxGone):
        anonymous_bytes(child.pid)


def test_a_folder_that_was_removed_meanwhile_is_a_sandbox_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(SandboxGone):
        host_costs(RamMapping(os.getpid(), 0, PAGE), tmp_path / "gone")


def test_files_that_come_and_go_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stays").write_bytes(b"x" * 10_000)
    (tmp_path / "goes").write_bytes(b"x")
    entries = list(os.scandir(tmp_path))
    (tmp_path / "goes").unlink()
    monkeypatch.setattr(os, "scandir", lambda _: entries)
    assert folder_bytes(tmp_path) >= 10_000
