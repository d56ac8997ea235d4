"""run, exec and attach with a real agent: streams, exit codes, terminals, and what is left when they end."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from belljar.errors import InvalidInput
from tests.cli.conftest import Command, StubFleet

DEADLINE_S = 60
Captured = pytest.CaptureFixture[bytes]


def feed_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))


async def test_run_streams_both_outputs_and_passes_the_exit_code_on(
    fleet: StubFleet, belljar: Command, capsysbinary: Captured
) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)"
    assert await belljar("run", "-c", code, "-e", "A=1", "--template", "python-data") == 5
    assert capsysbinary.readouterr() == (b"out\n", b"err\n")
    assert fleet.log == [("create", "python-data", {"env": {"A": "1"}, "egress": None}), ("sb-1", "kill", (), {})]


async def test_run_uploads_a_file_and_runs_it_where_it_lies(
    fleet: StubFleet, belljar: Command, capsysbinary: Captured, tmp_path: Path
) -> None:
    script = tmp_path / "-odd name.py"
    script.write_text("import sys, os; print(sys.argv[0], os.getcwd())")
    assert await belljar("run", "--", str(script)) == 0
    assert fleet.guest is not None
    assert capsysbinary.readouterr().out == f"./-odd name.py {fleet.guest.home}\n".encode()
    (tmp_path / "x.sh").write_text("echo $0")
    assert await belljar("run", str(tmp_path / "x.sh")) == 0
    assert capsysbinary.readouterr().out == b"./x.sh\n"


async def test_run_reads_code_or_data_from_stdin(
    fleet: StubFleet, belljar: Command, capsysbinary: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_stdin(monkeypatch, b"print(6 * 7)")
    assert await belljar("run", "-") == 0
    assert capsysbinary.readouterr().out == b"42\n"
    feed_stdin(monkeypatch, b"data")
    assert await belljar("run", "--language", "bash", "-c", "cat") == 0
    assert capsysbinary.readouterr().out == b"data"


async def test_run_can_keep_its_sandbox(fleet: StubFleet, belljar: Command, capsysbinary: Captured) -> None:
    assert await belljar("run", "--keep", "-c", "pass") == 0
    assert b"sb-1" in capsysbinary.readouterr().err
    assert [entry[0] for entry in fleet.log] == ["create"]


async def test_run_with_bad_arguments_creates_nothing(fleet: StubFleet, belljar: Command, tmp_path: Path) -> None:
    for words in (["nosuch.py"], [str(tmp_path)], ["-c", "a\0b"], ["-c", "1", "--timeout", "-1"], ["-c", "1", "-e", "A"]):
        with pytest.raises(InvalidInput):
            await belljar("run", *words)
    assert fleet.log == []


async def test_run_that_is_interrupted_kills_its_sandbox(fleet: StubFleet, belljar: Command) -> None:
    running = asyncio.ensure_future(belljar("run", "-c", "import time; print('up', flush=True); time.sleep(600)"))
    async with asyncio.timeout(DEADLINE_S):
        while not fleet.log:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert fleet.log[-1][:2] == ("sb-1", "kill")


async def test_a_timeout_is_124_and_a_signal_is_128_and_its_number(
    fleet: StubFleet, belljar: Command, capsysbinary: Captured
) -> None:
    assert await belljar("exec", "sb-1", "--timeout", "0.3", "--", "sleep", "60") == 124
    assert b"time ran out" in capsysbinary.readouterr().err
    assert await belljar("exec", "sb-1", "kill -9 $$") == 137


async def test_one_word_is_for_the_shell_and_several_are_arguments(
    fleet: StubFleet, belljar: Command, capsysbinary: Captured
) -> None:
    assert await belljar("exec", "sb-1", "-e", "A=1", "-w", "/", "echo $A; pwd") == 0
    assert capsysbinary.readouterr().out == b"1\n/\n"
    assert await belljar("exec", "sb-1", "--", "echo", "$A", "-n") == 0
    assert capsysbinary.readouterr().out == b"$A -n\n"


async def test_exec_pipes_stdin_of_any_kind(
    fleet: StubFleet, belljar: Command, capsysbinary: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    monkeypatch.setattr(sys, "stdin", (tmp_path / "big").open())
    assert await belljar("exec", "sb-1", "wc -c") == 0
    feed_stdin(monkeypatch, b"piped")
    assert await belljar("exec", "sb-1", "cat") == 0
    assert capsysbinary.readouterr().out == b"1000000\npiped"


async def test_a_command_does_not_wait_for_a_stdin_that_never_ends(
    fleet: StubFleet, belljar: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))
    assert await belljar("exec", "sb-1", "true") == 0
    os.close(writing)


async def test_detached_processes_are_listed_and_attached_to(fleet: StubFleet, belljar: Command, capsysbinary: Captured) -> None:
    assert await belljar("exec", "-d", "sb-1", "echo hello; exit 3") == 0
    process = capsysbinary.readouterr().out.decode().strip()
    assert await belljar("attach", "sb-1", process) == 3
    assert capsysbinary.readouterr().out == b"hello\n"
    await belljar("ps", "sb-1", "--json")
    assert [(p["id"], p["exit_code"]) for p in json.loads(capsysbinary.readouterr().out)] == [(process, 3)]
    await belljar("ps", "sb-1")
    assert b"exit 3" in capsysbinary.readouterr().out


async def test_tty_is_refused_without_a_terminal(fleet: StubFleet, belljar: Command) -> None:
    for words in (["-t"], ["-t", "-d"]):
        with pytest.raises(InvalidInput):
            await belljar("exec", *words, "sb-1", "bash")


class Terminal:
    """The user's side of a terminal that the command line takes for its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        self.resize(24, 80)
        monkeypatch.setattr(sys, "stdin", os.fdopen(slave))
        monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(slave), "w"))

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def shows(self, wanted: bytes) -> None:
        seen, loop, ready = b"", asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._master, ready.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while wanted not in seen:
                    await ready.wait()
                    ready.clear()
                    with suppress(BlockingIOError):
                        seen += os.read(self._master, 4096)
        finally:
            loop.remove_reader(self._master)

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)


async def test_a_terminal_is_handed_over_resized_and_given_back(
    fleet: StubFleet, belljar: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch)
    script = "stty size; while read x; do stty size; test -z $x || exit $x; done"
    running = asyncio.ensure_future(belljar("exec", "-t", "sb-1", script))
    await terminal.shows(b"24 80")
    assert not terminal.echoes()
    terminal.resize(50, 132)
    os.kill(os.getpid(), signal.SIGWINCH)
    for _ in range(200):  # the size travels on a channel of its own, and may arrive after the first keys
        terminal.type(b"\r")
        try:
            async with asyncio.timeout(0.3):
                await terminal.shows(b"50 132")
            break
        except TimeoutError:
            continue
    terminal.type(b"9\r")
    async with asyncio.timeout(DEADLINE_S):
        assert await running == 9
    assert terminal.echoes()


async def test_the_detach_key_leaves_a_terminal_process_running(
    fleet: StubFleet, belljar: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from belljar.fleet.process import PtySize

    sandbox = await fleet.get("sb-1")
    process = await sandbox.processes.start("echo ready; sleep 600", pty=PtySize(), background=True)
    terminal = Terminal(monkeypatch)
    running = asyncio.ensure_future(belljar("attach", "sb-1", process.id))
    await terminal.shows(b"ready")
    terminal.type(b"\x1d")
    async with asyncio.timeout(DEADLINE_S):
        assert await running == 0
    assert [p.running for p in await sandbox.processes.list()] == [True]
    await sandbox.processes.kill(process.id)
