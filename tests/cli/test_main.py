"""The command line itself: usage, errors in one line, exit codes, and that it answers at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.cli import main as main_module
from belljar.cli.main import build_parser, main
from belljar.errors import SandboxNotFound


def handled_by(monkeypatch: pytest.MonkeyPatch, handler: Any) -> None:
    parser = SimpleNamespace(parse_args=lambda argv: SimpleNamespace(handler=handler))
    monkeypatch.setattr(main_module, "build_parser", lambda: parser)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "a.py", "-c", "1"],
        ["run", "a.py", "--timeout", "soon"],
        ["run", "a.py", "--language", "cobol"],
        ["exec"],
        ["exec", "sb-1"],
        ["cp", "a"],
        ["fork"],
        ["fork", "sb-1", "-n", "two"],
        ["snapshot"],
        ["snapshot", "rm"],
        ["template", "build"],
        ["pause"],
        ["create", "--template", "base", "--snapshot", "x"],
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: belljar" in capsys.readouterr().err


def test_exec_takes_options_before_and_everything_after_the_dashes() -> None:
    args = build_parser().parse_args(["exec", "sb-1", "-u", "root", "-e", "A=1", "--", "ls", "-l", "--", "-t"])
    assert (args.sandbox, args.user, args.env, args.command, args.tty) == ("sb-1", "root", ["A=1"], ["ls", "-l", "--", "-t"], False)
    args = build_parser().parse_args(["exec", "-t", "sb-1", "bash"])
    assert (args.tty, args.command) == (True, ["bash"])


def test_an_error_is_one_line_and_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def fail(args: object) -> int:
        raise SandboxNotFound("no sandbox 'x\x1b[2J'\nsecond line")

    handled_by(monkeypatch, fail)
    assert main(["x"]) == 1
    assert capsys.readouterr().err == "belljar: no sandbox 'x\\x1b[2J' second line\n"


def test_a_defect_is_one_line_too_unless_asked_for_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(args: object) -> int:
        raise ZeroDivisionError("division by zero")

    handled_by(monkeypatch, fail)
    monkeypatch.delenv("BELLJAR_DEBUG", raising=False)
    assert main(["x"]) == 1
    quiet = capsys.readouterr().err
    assert quiet.count("\n") == 1
    assert quiet.startswith("belljar: internal error: ZeroDivisionError")
    monkeypatch.setenv("BELLJAR_DEBUG", "1")
    assert main(["x"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_lets_the_command_clean_up(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    cleaned = []

    async def wait(args: object) -> int:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)
        return 0

    handled_by(monkeypatch, wait)
    # Whoever starts the tests in the background may have told them to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["x"]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned == [number]


def test_the_commands_exit_code_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(args: object) -> int:
        return 42

    handled_by(monkeypatch, answer)
    assert main(["x"]) == 42


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import sys, os; from belljar.cli import main as m\n"
        "async def flood(args):\n while True: print('x' * 1000)\n"
        "m.build_parser = lambda: type('P', (), {'parse_args': lambda s, a: type('A', (), {'handler': staticmethod(flood)})})()\n"
        "sys.exit(m.main([]))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        complaint = child.stderr.read()
    assert (child.returncode, complaint) == (141, b"")


def test_asking_for_help_loads_nothing_heavy() -> None:
    code = "import sys, belljar.cli.main; belljar.cli.main.build_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "numpy", "sqlite3", "tomllib", "belljar.fleet", "belljar.vm", "belljar.service"} & set(loaded)


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run"], ["exec"], ["cp"], ["snapshot", "create"], ["template", "build"], ["doctor"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0
        assert f"usage: belljar {' '.join(words)}" in capsys.readouterr().out
