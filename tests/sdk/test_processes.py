"""Processes and terminals through the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import belljar
from belljar import AsyncSandbox, Client, Sandbox, errors
from tests.server.conftest import Server, eventually

ROOT = Path(__file__).parent.parent.parent


def test_run(box: Sandbox) -> None:
    done = box.processes.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert box.processes.run(["printf", "%s|", "a b", "$HOME"]).stdout == "a b|$HOME|"
    assert box.processes.run(["tr", "a-z", "A-Z"], input=b"shout\xff").stdout_bytes == b"SHOUT\xff"
    assert box.processes.run("pwd; echo $A; id -un", cwd="/tmp", env={"A": "1"}, user="root").stdout == "/tmp\n1\nroot\n"
    assert box.processes.run("kill -9 $$").exit_code == 137
    late = box.processes.run("sleep 60", timeout_seconds=1)
    assert late.timed_out and late.exit_code == 124
    with pytest.raises(belljar.CommandFailed) as caught:
        box.processes.run("echo no >&2; false", check=True)
    assert caught.value.stderr == "no\n"
    with pytest.raises(errors.CommandNotFound):
        box.processes.run(["/no/such/program"])
    with pytest.raises(ValueError, match="line or a list"):
        box.processes.run(7)  # type: ignore[arg-type]


def test_output_is_kept_up_to_a_limit_and_callbacks_get_all(box: Sandbox) -> None:
    sizes: list[int] = []
    done = box.processes.run("head -c 300000 /dev/zero", on_stdout=lambda data: sizes.append(len(data)), max_output=1000)
    assert sum(sizes) == 300_000 and len(done.stdout_bytes) == 1000


def test_leaving_a_foreground_process_ends_it(box: Sandbox) -> None:
    with box.processes.stream("echo on; exec sleep 4713") as process:
        assert next(process).data == b"on\n"
        assert process.pid > 0
    eventually(lambda: box.exec("pgrep -f '[s]leep 4713'").exit_code == 1, "its end")


def test_a_background_process_is_attached_to_by_offset(client: Client, box: Sandbox) -> None:
    started = box.processes.start("echo one; read word; echo got $word >&2; read more; echo $more; exit 5", stdin=True)
    with started:
        assert next(started).data == b"one\n"
    # Another handle, as another program would have it, goes on where this one stopped.
    again = client.sandboxes.get(box.id).processes.attach(started.id, stdout_offset=started.stdout_offset)
    again.write("hello\n")
    assert (next(again).stream, again.stderr_offset) == ("stderr", 10)
    again.write("bye\n", eof=True)
    assert [chunk.text for chunk in again] == ["bye\n"]
    assert again.exit is not None and again.exit.exit_code == 5
    assert [chunk.text for chunk in box.processes.attach(started.id, stdout_offset=4)] != []
    info = box.processes.get(started.id)
    assert (info.running, info.exit_code, info.background) == (False, 5, True)
    assert started.id in [found.id for found in box.processes.list()]
    with pytest.raises(errors.ProcessNotFound):
        box.processes.get("p-none")


def test_output_that_was_not_kept_is_counted(box: Sandbox) -> None:
    process = box.processes.start("head -c 3000000 /dev/zero")
    eventually(lambda: not process.info().running, "its end")
    size = sum(len(chunk.data) for chunk in process)
    assert size + process.dropped["stdout"] == 3_000_000 and process.dropped["stdout"] > 0


def test_signals(box: Sandbox) -> None:
    process = box.processes.start("trap 'echo hup; exit 7' HUP; echo ready; while :; do sleep 0.1; done")
    assert next(process).data == b"ready\n"
    process.signal("SIGHUP")
    assert process.wait().exit_code == 7
    other = box.processes.start("sleep 600 & sleep 600")
    other.signal(signal.SIGTERM, tree=True)
    assert other.wait().signal == signal.SIGTERM
    third = box.processes.start("sleep 600")
    third.kill()
    assert third.wait().signal == signal.SIGKILL


def test_a_terminal(box: Sandbox) -> None:
    with box.terminal(rows=10, cols=40, cwd="/tmp") as terminal:
        terminal.send("stty size; pwd; echo do''ne\n")
        seen = terminal.read_until("done\r\n")
        assert b"10 40" in seen and b"/tmp" in seen
        terminal.resize(20, 50)
        terminal.send("stty size; echo do''ne\n")
        assert b"20 50" in terminal.read_until("done\r\n")
        terminal.send("exit 3\n")
        assert terminal.wait() == 3
    with box.terminal("tty; exit 4") as short:
        assert b"/dev/pts" in b"".join(short) and short.exit_code == 4
    with pytest.raises(TimeoutError), box.terminal("sleep 60") as silent:
        silent.receive(timeout=0.2)
    with pytest.raises(belljar.NotFoundError):
        Sandbox(id="sb-none", client=box._client).terminal()


def test_a_background_terminal_stays_when_it_is_left(box: Sandbox) -> None:
    process = box.processes.start("read a; echo got $a; read b; exit 6", pty=(24, 80))
    with process.terminal() as terminal:
        terminal.send("one\n")
        terminal.read_until("got one")
    assert process.info().running
    with process.terminal() as terminal:
        terminal.send("two\n")
        assert terminal.wait() == 6


INTERACT = """
import asyncio, sys, belljar
kind, url, key, box = sys.argv[1:]
async def main():
    async with belljar.AsyncClient(url, key) as client:
        async with await belljar.AsyncSandbox(id=box, client=client).terminal() as terminal:
            return await terminal.interact()
def plain():
    with belljar.Client(url, key) as client, belljar.Sandbox(id=box, client=client).terminal() as terminal:
        return terminal.interact()
print("ended with", plain() if kind == "sync" else asyncio.run(main()))
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_terminal_inside_our_own(kind: str, sdk_server: Server, box: Sandbox) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", INTERACT, kind, sdk_server.url, sdk_server.token or "", box.id]
    program = subprocess.Popen(words, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""

    def read_until(wanted: bytes) -> None:
        nonlocal shown
        while wanted not in shown:
            with contextlib.suppress(OSError):
                shown += os.read(ours, 65536)
            assert program.poll() is None or wanted in shown, f"it ended; it showed {shown!r}"

    try:
        read_until(b"$ ")
        os.write(ours, b"echo answer $((6*7))\n")
        read_until(b"answer 42")
        os.write(ours, b"exit 9\n")
        read_until(b"ended with 9")
    finally:
        program.wait(60)
        os.close(ours)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_terminal_that_is_fed_from_a_file(kind: str, sdk_server: Server, box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("echo answer $((6*7)); exit 9\n")
    words = [sys.executable, "-c", INTERACT, kind, sdk_server.url, sdk_server.token or "", box.id]
    with (tmp_path / "keys").open() as keys:
        done = subprocess.run(words, cwd=ROOT, stdin=keys, capture_output=True, timeout=120)
    assert b"answer 42" in done.stdout and b"ended with 9" in done.stdout, done


def test_a_program_without_an_input_is_told(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # as in a notebook
    with box.terminal() as terminal, pytest.raises(errors.InvalidInput, match="notebook"):
        terminal.interact()


INTERRUPTED = """
import sys, belljar
url, key, box, kind = sys.argv[1:]
box = belljar.Sandbox(id=box, client=belljar.Client(url, key))
def show(text):
    print("on", flush=True)
try:
    if kind == "cell":
        box.contexts.run("print('on', flush=True)\\nimport time\\ntime.sleep(4715)", on_stdout=show)
    else:
        box.exec_stream("echo on; exec sleep 4715", on_stdout=show)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("kind", ["cell", "command"])
def test_ctrl_c_ends_what_runs_in_the_sandbox(kind: str, sdk_server: Server, box: Sandbox) -> None:
    words = [sys.executable, "-X", "dev", "-c", INTERRUPTED, sdk_server.url, sdk_server.token or "", box.id, kind]
    # A shell that starts things in the background has them ignore Ctrl-C, which would be inherited here.
    program = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore_ctrl_c
    )
    assert program.stdout is not None and program.stdout.readline() == "on\n"
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60) == ("interrupted\n", "")

    def over() -> bool:
        return box.exec("pgrep -f '[s]leep 4715'").stdout == "" and box.contexts.default().info().state == "idle"

    eventually(over, f"the end of the {kind}")


def restore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def test_a_cancelled_call_ends_its_command(abox: AsyncSandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await abox.exec("exec sleep 4714")
    for _ in range(100):
        if (await abox.exec("pgrep -f '[s]leep 4714'; sleep 0.1")).stdout == "":
            return
    pytest.fail("the command outlived its caller")


async def test_processes_awaited(abox: AsyncSandbox) -> None:
    assert (await abox.processes.run("echo hi")).stdout == "hi\n"
    async with abox.processes.stream("echo a; exit 2") as process:
        assert [chunk.data async for chunk in process] == [b"a\n"]
    assert process.exit is not None and process.exit.exit_code == 2
    background = await abox.processes.start("read x; echo got $x", stdin=True)
    await background.write("it\n", eof=True)
    assert [chunk.text async for chunk in background] == ["got it\n"]
    async with await abox.terminal() as terminal:
        await terminal.send("echo wor''ks; exit 1\n")
        await terminal.read_until("works")
        assert await terminal.wait() == 1
