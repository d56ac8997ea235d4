"""Processes with a real agent on the host: what a caller can do with one from start to end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from belljar.errors import CommandNotFound, Conflict, FileMissing, InvalidInput, ProcessNotFound
from belljar.fleet.process import Process, PtySize
from belljar.fleet.processes import Processes
from tests.guest.conftest import Guest

DEADLINE_S = 60


async def read_until(process: Process, wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(DEADLINE_S):
        async for output in process:
            seen += output.data
            if wanted in seen:
                return seen
    raise AssertionError(f"ended without {wanted!r}: {seen!r}")


def runs(pid: int) -> bool:
    """A zombie that nobody has reaped yet does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def is_gone(pid: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while runs(pid):
            await asyncio.sleep(0.01)


async def test_run_tells_output_and_exit_code(real_processes: Processes, agent: Guest) -> None:
    result = await real_processes.run('echo "$A"; pwd; echo oops >&2; exit 3', env={"A": "ü"}, cwd=str(agent.home))
    assert (result.exit_code, result.signal) == (3, None)
    assert (result.stdout_text, result.stderr) == (f"ü\n{agent.home}\n", b"oops\n")
    assert result.duration_s > 0
    assert not result.timed_out


async def test_arguments_reach_the_program_as_they_are(real_processes: Processes) -> None:
    words = ["", " ", "$HOME", "a\nb", "ü", "'\""]
    result = await real_processes.run(["printf", "%s|", *words])
    assert result.stdout_text == "|".join(words) + "|"


async def test_a_signal_that_ends_it_is_told(real_processes: Processes) -> None:
    result = await real_processes.run("kill -TERM $$; sleep 60")
    assert (result.exit_code, result.signal) == (None, signal.SIGTERM)


async def test_input_larger_than_any_buffer_comes_back_whole(real_processes: Processes) -> None:
    data = os.urandom(3_000_000)
    assert (await real_processes.run(["cat"], stdin=data)).stdout == data


async def test_a_timeout_kills_children_too(real_processes: Processes) -> None:
    result = await real_processes.run("sleep 600 & echo $!; wait", timeout_s=1)
    assert result.timed_out
    await is_gone(int(result.stdout))


async def test_what_cannot_be_started_is_a_typed_error(real_processes: Processes) -> None:
    with pytest.raises(CommandNotFound):
        await real_processes.run(["no-such-program"])
    with pytest.raises(FileMissing):
        await real_processes.run("true", cwd="/no/such/folder")
    with pytest.raises(InvalidInput):
        await real_processes.run("true", user="no-such-user")
    with pytest.raises(ProcessNotFound):
        await real_processes.attach("p-none")


async def test_leaving_a_started_process_kills_it(real_processes: Processes) -> None:
    async with await real_processes.start("sleep 600 & echo $!; wait") as process:
        child = int(await read_until(process, b"\n"))
    await is_gone(child)
    await is_gone(process.pid)


async def test_a_detached_process_runs_on_and_is_joined_again_without_loss(real_processes: Processes) -> None:
    process = await real_processes.start("echo one; read x; echo got $x; exit 7")
    assert await read_until(process, b"one\n") == b"one\n"
    await process.detach()
    assert [p.running for p in await real_processes.list() if p.id == process.id] == [True]
    await process.write("two\n")
    assert await read_until(process, b"got two\n") == b"got two\n"
    assert (await process.wait()).exit_code == 7


async def test_a_background_process_can_be_written_to_followed_and_ended(real_processes: Processes) -> None:
    process = await real_processes.start("while read x; do echo $x; done; echo end", background=True)
    await real_processes.write(process.id, "a\n")
    follower = await real_processes.attach(process.id)
    assert await read_until(follower, b"a\n") == b"a\n"
    await follower.write("b\n")
    await follower.close_stdin()
    assert await read_until(follower, b"end\n") == b"b\nend\n"
    assert (await follower.wait()).exit_code == 0
    again = await real_processes.attach(process.id, stdout_offset=2)
    assert b"".join([output.data async for output in again]) == b"b\nend\n"


async def test_background_output_is_bounded_and_the_loss_is_counted(real_processes: Processes) -> None:
    process = await real_processes.start("head -c 5000000 /dev/zero; echo done", background=True)
    async with asyncio.timeout(DEADLINE_S):
        while any(p.id == process.id and p.running for p in await real_processes.list()):
            await asyncio.sleep(0.02)
    kept = b"".join([output.data async for output in process])
    assert kept.endswith(b"done\n")
    assert process.dropped.stdout == 5_000_005 - len(kept)
    assert 0 < len(kept) < 5_000_005


async def test_the_newer_attach_wins(real_processes: Processes) -> None:
    process = await real_processes.start("sleep 600", background=True)
    older = await real_processes.attach(process.id)
    newer = await real_processes.attach(process.id)
    with pytest.raises(Conflict):
        await older.wait()
    await newer.kill()
    assert (await newer.wait()).signal == signal.SIGKILL


async def test_signals_reach_the_process_by_name_and_number(real_processes: Processes) -> None:
    script = "trap 'echo usr1' USR1; trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    async with await real_processes.start(script) as process:
        await read_until(process, b"ready")
        await process.signal("USR1")
        await read_until(process, b"usr1")
        await real_processes.signal(process.id, 15)
        assert (await process.wait()).exit_code == 5


async def test_a_terminal_is_one_and_can_be_resized(real_processes: Processes) -> None:
    async with await real_processes.start("stty size; read x; stty size", pty=PtySize(30, 100)) as process:
        assert await read_until(process, b"\r\n") == b"30 100\r\n"
        await process.resize(PtySize(40, 120))
        await process.write("\r")
        assert b"40 120" in await read_until(process, b"40 120\r\n")
        assert (await process.wait()).exit_code == 0


async def test_many_run_side_by_side(real_processes: Processes) -> None:
    results = await asyncio.gather(*(real_processes.run(["echo", str(n)]) for n in range(30)))
    assert [int(result.stdout) for result in results] == list(range(30))
