"""Launching: one plan is one program, whatever happens to the child that waits for it."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path

import pytest

from belljar.guest.cgroups import SessionGroups
from belljar.guest.spawn import Launched, Launcher, Plan


def launch(launcher: Launcher, shell: str) -> Launched:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        plan = Plan(["sh", "-c", shell], ["/bin/sh"], dict(os.environ), "/", False, os.getuid(), os.getgid(), (os.getgid(),), False)
        return launcher.launch(plan, (null, null, null))
    finally:
        os.close(null)


def finish(launched: Launched) -> int:
    os.close(launched.report_fd)
    return os.waitstatus_to_exitcode(os.waitpid(launched.pid, 0)[1])


@pytest.fixture
def launcher() -> Launcher:
    return Launcher(SessionGroups(), lambda: None)


def test_spare_child_becomes_the_program(launcher: Launcher) -> None:
    launcher.prepare()
    launcher.prepare()
    assert finish(launch(launcher, "exit 7")) == 7


def test_without_a_spare_one_is_made(launcher: Launcher) -> None:
    assert finish(launch(launcher, "exit 8")) == 8


def test_program_that_starts_before_we_are_done_telling_runs_once(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs as soon as it knows enough, and closes the socket: that must not look like a child that died."""
    send_fds = socket.send_fds

    def send_and_wait(sock: socket.socket, data: list[bytes], fds: list[int]) -> int:
        sent = send_fds(sock, data, fds)
        poll = select.poll()
        poll.register(sock, select.POLLHUP)
        assert poll.poll(30_000)
        return sent

    monkeypatch.setattr(socket, "send_fds", send_and_wait)
    for _ in range(2):
        launcher.prepare()
        assert finish(launch(launcher, f"echo run >> {tmp_path}/runs")) == 0
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_spare_that_was_killed_is_replaced(launcher: Launcher) -> None:
    launcher.prepare()
    assert launcher._spare is not None
    os.kill(launcher._spare._pid, signal.SIGKILL)
    os.waitid(os.P_PID, launcher._spare._pid, os.WEXITED | os.WNOWAIT)
    assert finish(launch(launcher, "exit 9")) == 9


def test_long_plans_arrive_whole(launcher: Launcher) -> None:
    launcher.prepare()
    assert finish(launch(launcher, f"x={'y' * 120_000}; exit ${{#x}}")) == 120_000 % 256


def test_spare_ends_with_its_agent(launcher: Launcher) -> None:
    launcher.prepare()
    spare = launcher._spare
    assert spare is not None
    spare._socket.close()
    assert os.waitstatus_to_exitcode(os.waitpid(spare._pid, 0)[1]) == 0
