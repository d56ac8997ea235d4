"""A VMM's process: who it is, how it is ended, and that a pid alone is never trusted."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from belljar.errors import SandboxGone
from belljar.vm.process import Identity, adopt_vmm, start_time, tail


async def test_an_adopted_process_is_watched_and_ended() -> None:
    child = subprocess.Popen(["sleep", "600"])
    started = start_time(child.pid)
    assert started is not None
    vmm = adopt_vmm(Identity(child.pid, started))
    assert not vmm.ended.is_set()
    await vmm.kill()
    assert vmm.ended.is_set()
    assert child.wait(10) == -9


async def test_a_pid_that_was_given_to_another_process_is_not_touched() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        started = start_time(child.pid)
        assert started is not None
        with pytest.raises(SandboxGone):
            adopt_vmm(Identity(child.pid, started - 1))
        assert child.poll() is None, "a process of the same number was ended"
    finally:
        child.kill()
        child.wait()


async def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None
    child.wait()


async def test_the_end_of_a_process_is_noticed_without_asking() -> None:
    child = subprocess.Popen(["sleep", "600"])
    started = start_time(child.pid)
    assert started is not None
    vmm = adopt_vmm(Identity(child.pid, started))
    child.kill()
    async with asyncio.timeout(10):
        await vmm.ended.wait()
    child.wait()


def test_the_tail_of_a_log_is_short_and_never_fails(tmp_path: Path) -> None:
    assert tail(tmp_path / "missing") == "(no log)"
    (tmp_path / "log").write_bytes(b"a" * 5000 + b"\xff last words\n")
    assert tail(tmp_path / "log", limit=100).endswith("last words")
    assert len(tail(tmp_path / "log", limit=100)) <= 100
