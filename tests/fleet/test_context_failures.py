"""Cells that go wrong, each for real: a typed error says what happened, and the next cell works."""

from __future__ import annotations

import asyncio

import pytest

from belljar.fleet.contexts import CodeContext
from belljar.fleet.results import ExecutionError
from belljar.fleet.sandbox import Sandbox
from tests.conftest import said
from tests.fleet.test_contexts import ran

DEADLINE_S = 120.0


async def failed(context: CodeContext | Sandbox, code: str, **options: object) -> ExecutionError:
    run = context.run_code if isinstance(context, Sandbox) else context.run
    execution = await run(code, **{"timeout_s": DEADLINE_S, **options})  # type: ignore[arg-type]
    assert execution.error is not None, f"{code!r} did not fail: {execution}"
    return execution.error


async def assert_state_is_gone(context: CodeContext | Sandbox) -> None:
    error = await failed(context, "kept")
    assert error.name == "NameError", error
    await ran(context, "kept = 1")


async def test_a_kernel_that_dies_says_how_and_the_next_cell_works(sandbox: Sandbox) -> None:
    other = (await sandbox.contexts.create("bash")).run("sleep 5; echo unharmed")
    beside = asyncio.create_task(other)
    await ran(sandbox, "kept = 1")
    for code, words in {
        "import ctypes; ctypes.string_at(0)": ("signal 11", "SIGSEGV", "segmentation"),
        "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGKILL)": ("signal 9", "SIGKILL", "kill"),
        "import os; os._exit(3)": ("3",),
    }.items():
        error = await failed(sandbox, code)
        assert (error.kind, error.state_lost) == ("died", True), (code, error)
        assert any(word.lower() in f"{error.name} {error.value}".lower() for word in words), (code, error)
        await assert_state_is_gone(sandbox)
    hog = await failed(sandbox, "kept = bytearray(1 << 20)\nwhile True: kept += kept")
    assert (hog.kind, hog.state_lost) in {("out_of_memory", True), ("exception", False)}, hog
    hog = await failed(sandbox, "kept = []\nwhile True: kept.append(bytearray(b'x') * (8 << 20))")
    assert (hog.kind, hog.state_lost) == ("out_of_memory", True), hog
    assert (hog.peak_memory_bytes or 0) > 512 << 20, "the peak is missing or far too small"
    await assert_state_is_gone(sandbox)
    assert (await beside).stdout == "unharmed\n", "another context was harmed"
    outside = asyncio.create_task(failed(sandbox, "print('up', flush=True)\nimport time; time.sleep(600)"))
    while (info := (await sandbox.contexts.list())[0]).state != "busy":
        await asyncio.sleep(0.05)
    await said(sandbox, f"sleep 0.5; kill -9 {info.pid}")
    error = await outside
    assert (error.kind, error.state_lost) == ("died", True)
    assert (await ran(sandbox, "1 + 1")).text == "2"


async def test_exit_ends_the_cell_and_keeps_the_state(sandbox: Sandbox) -> None:
    await ran(sandbox, "kept = 1")
    for code in ("import sys; sys.exit(3)", "exit()", "quit()", "raise SystemExit('why')"):
        error = await failed(sandbox, code)
        assert (error.kind, error.state_lost) == ("exit", False), (code, error)
    assert (await ran(sandbox, "kept")).text == "1"


async def test_a_timeout_interrupts_and_keeps_the_state_or_restarts_and_says_so(sandbox: Sandbox) -> None:
    context = await sandbox.contexts.create()
    await ran(context, "kept = 1")
    error = await failed(context, "import time\nprint('up')\ntime.sleep(600)", timeout_s=1)
    assert (error.kind, error.state_lost) == ("timeout", False), error
    error = await failed(context, "while True: pass", timeout_s=1)
    assert (error.kind, error.state_lost) == ("timeout", False), error
    assert (await ran(context, "!true\nkept")).text == "1"
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    error = await failed(context, stubborn, timeout_s=1)
    assert (error.kind, error.state_lost) == ("timeout", True), error
    await assert_state_is_gone(context)
    bash = await sandbox.contexts.create("bash")
    await ran(bash, "kept=1")
    error = await failed(bash, "sleep 600", timeout_s=1)
    assert error.kind == "timeout"
    if not error.state_lost:
        assert (await ran(bash, "echo $kept")).stdout == "1\n"


async def test_input_fails_at_once_unless_there_is_stdin(sandbox: Sandbox) -> None:
    error = await failed(sandbox, "input('name? ')")
    assert error.kind == "exception" and "stdin" in error.value, error
    answer = await ran(sandbox, "a = input('name? ')\nimport sys\nrest = sys.stdin.read()\n(a, rest)", stdin="Ada\nmore\n")
    assert answer.text == "('Ada', 'more\\n')"
    error = await failed(sandbox, "input()", stdin="")
    assert error.name == "EOFError"
    assert (await failed(sandbox, "import getpass; getpass.getpass()")).kind == "exception"


async def test_a_full_disk_is_told_and_harms_nothing(sandbox: Sandbox) -> None:
    context = await sandbox.contexts.create()
    await ran(context, "kept = 1")
    fill = "with open('/workspace/fill', 'wb') as f:\n    while True: f.write(bytes(1 << 24))"
    await said(sandbox, "sudo fallocate -l $(($(df --output=avail -B1 / | tail -1) - (64 << 20))) /workspace/ballast")
    error = await failed(context, fill)
    assert (error.kind, error.state_lost) == ("disk_full", False), error
    flood = await context.run("for n in range(300_000): print('x' * 9)", timeout_s=DEADLINE_S, max_output=1000)
    assert flood.error is None and flood.truncated.stdout is not None
    assert flood.truncated.stdout.omitted + len(flood.stdout) == 3_000_000
    assert (await ran(context, "kept")).text == "1"
    await said(sandbox, "sudo rm -f /workspace/fill /workspace/ballast")
    assert (await ran(context, "open('/workspace/ok', 'w').write('ok')")).text == "2"


@pytest.mark.parametrize(
    "code", ["def f(): f()\nf()", "raise KeyboardInterrupt", "class E(Exception):\n  def __str__(self): 1/0\nraise E"]
)
async def test_odd_exceptions_are_told_like_any_other(sandbox: Sandbox, code: str) -> None:
    error = await failed(sandbox, code)
    assert error.kind in ("exception", "interrupted") and error.traceback and not error.state_lost
    assert sum(map(len, error.traceback)) < 100_000
    assert (await ran(sandbox, "1 + 1")).text == "2"
