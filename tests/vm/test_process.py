"""A VMM's process: who it is, how it is ended, and that a pid alone is never trusted."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import HostError, SandboxError, SandboxGone
from belljar.vm import process
from belljar.vm.process import Identity, Vmm, adopt_vmm, start_time, tail


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


async def test_a_process_that_cannot_be_watched_is_ended_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would know of it: its folder is removed, and a clean-up finds processes by their folder."""
    spawned: list[int] = []

    def no_more_files(pid: int) -> int:
        spawned.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    facts: Any = SimpleNamespace(jail=False, accelerator="tcg", kvm_gid=None)
    monkeypatch.setattr(process.os, "pidfd_open", no_more_files)
    with pytest.raises(HostError, match="Too many open files"):
        await process.start_vmm(
            ["sleep", "600"], [], facts, log=tmp_path / "log", uid=None, max_file_bytes=1 << 20, root=None
        )
    assert len(spawned) == 1 and start_time(spawned[0]) is None


async def test_a_jail_that_does_not_end_with_its_machine_is_a_typed_error() -> None:
    machine, jail = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"])
    started = start_time(machine.pid)
    assert started is not None
    try:
        with pytest.raises(SandboxError, match="did not end"):
            await Vmm(Identity(machine.pid, started), os.pidfd_open(machine.pid), jail).kill(0.2)
    finally:
        for child in (machine, jail):
            child.kill()
            child.wait()


def test_what_every_machine_says_is_no_last_word(tmp_path: Path) -> None:
    usual = "qemu-system-x86_64: Expected vmdescription section, but got 0\n"
    (tmp_path / "log").write_text(usual)
    assert tail(tmp_path / "log") == "(nothing was logged)"
    (tmp_path / "log").write_text(usual + "qemu-system-x86_64: out of memory\n")
    assert tail(tmp_path / "log") == "qemu-system-x86_64: out of memory"
