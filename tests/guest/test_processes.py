"""Processes: what is run, what comes back, what is killed, what is kept."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
from pathlib import Path

import pytest

from belljar.errors import CommandNotFound, Conflict, FileMissing, InvalidInput, NotADirectory, ProcessNotFound
from belljar.vm.link import Data, Message
from tests.guest.conftest import DEADLINE_S, Guest

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root")


async def wait_for(path: Path) -> str:
    async with asyncio.timeout(DEADLINE_S):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text().strip()


async def wait_until_dead(pid: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            await asyncio.sleep(0.01)


# -- running


async def test_output_and_exit_code_come_back(guest: Guest) -> None:
    done = await guest.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert (done.exited["exit_code"], done.exited["signal"], done.exited["timed_out"]) == (3, None, False)
    assert done.first["started"]["pid"] > 0
    assert done.exited["dropped"] == {"stdout": 0, "stderr": 0}


async def test_argv_is_not_seen_by_a_shell(guest: Guest) -> None:
    async with await guest.link.open("process.start", {"argv": ["echo", "$HOME; ls", "*"]}) as channel:
        channel.end()
        assert (await guest.collect(channel)).stdout == b"$HOME; ls *\n"


async def test_death_by_signal_is_told(guest: Guest) -> None:
    done = await guest.run("kill -TERM $$")
    assert (done.exited["exit_code"], done.exited["signal"]) == (None, 15)


async def test_stdin_reaches_the_process_and_its_end_too(guest: Guest) -> None:
    data = os.urandom(1_000_000)
    done = await guest.run("cat", stdin=data)
    assert done.stdout == data


async def test_without_stdin_the_process_reads_nothing(guest: Guest) -> None:
    assert (await guest.run("cat; echo done")).stdout == b"done\n"


async def test_process_that_ignores_its_stdin_does_not_hold_the_sender_up(guest: Guest) -> None:
    done = await guest.run("exec 0<&-; sleep 0.1; echo ok", stdin=bytes(2_000_000))
    assert done.stdout == b"ok\n"


async def test_environment_is_merged(guest: Guest) -> None:
    await guest.ask("thaw", env={"A": "thawed", "B": "thawed"})
    done = await guest.run("echo $A $B $C $LANG $USER; cd; pwd; echo $PATH", env={"B": "asked", "C": "asked"})
    lines = done.stdout.decode().splitlines()
    account = pwd.getpwuid(os.getuid())
    assert lines[0] == f"thawed asked asked C.UTF-8 {account.pw_name}"
    assert lines[1] == str(Path(account.pw_dir).resolve())
    assert lines[2].startswith("/opt/venv/bin:")


async def test_path_of_the_request_decides_which_program_runs(guest: Guest) -> None:
    program = guest.home / "bin" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    async with await guest.link.open("process.start", {"argv": ["mine"], "env": {"PATH": f"/usr/bin:{program.parent}"}}) as channel:
        channel.end()
        assert (await guest.collect(channel)).stdout == b"mine\n"


async def test_cwd_is_relative_to_the_default(guest: Guest) -> None:
    (guest.home / "sub").mkdir()
    assert (await guest.run("pwd", cwd="sub")).stdout.decode().strip() == str(guest.home / "sub")
    assert (await guest.run("pwd")).stdout.decode().strip() == str(guest.home)


async def test_deleted_default_cwd_does_not_stop_processes(guest: Guest) -> None:
    guest.home.rmdir()
    assert (await guest.run("pwd")).stdout == b"/\n"


@ROOT_ONLY
async def test_another_user_has_its_own_rights_and_groups(guest: Guest) -> None:
    done = await guest.run("id -un; id -G; cat /etc/shadow", user="nobody")
    assert done.stdout.split() == [b"nobody", b"65534"]
    assert b"ermission denied" in done.stderr


async def test_children_inherit_no_descriptors_and_default_signals(guest: Guest) -> None:
    done = await guest.run("ls /proc/$$/fd | wc -l; grep SigIgn /proc/$$/status; grep SigBlk /proc/$$/status")
    count, ignored, blocked = done.stdout.decode().splitlines()
    assert int(count) <= 4  # 0, 1, 2, and the pipe of the shell itself
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0
    assert int(blocked.split()[1], 16) == 0


# -- refusals


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"argv": ["no-such-program"]}, CommandNotFound),
        ({"argv": ["/no/such/program"]}, CommandNotFound),
        ({"argv": ["/etc/passwd"]}, CommandNotFound),
        ({"argv": ["/tmp"]}, CommandNotFound),
        ({"argv": ["true"], "cwd": "/no/such"}, FileMissing),
        ({"argv": ["true"], "cwd": "/etc/passwd"}, NotADirectory),
        ({"argv": ["true"], "user": "nobody-here"}, InvalidInput),
        ({"argv": []}, InvalidInput),
        ({"argv": [""]}, InvalidInput),
        ({"argv": ["x\0y"]}, InvalidInput),
        ({"argv": "true"}, InvalidInput),
        ({"argv": [1]}, InvalidInput),
        ({"argv": ["true"], "shell": "true"}, InvalidInput),
        ({}, InvalidInput),
        ({"shell": "true", "env": {"A=B": "c"}}, InvalidInput),
        ({"shell": "true", "env": {"A": 1}}, InvalidInput),
        ({"shell": "true", "env": []}, InvalidInput),
        ({"shell": "true", "timeout_s": -1}, InvalidInput),
        ({"shell": "true", "timeout_s": "soon"}, InvalidInput),
        ({"shell": "true", "stdin": 1}, InvalidInput),
        ({"shell": "true", "pty": {"rows": 0, "cols": 80}}, InvalidInput),
        ({"shell": "true", "pty": []}, InvalidInput),
        ({"shell": "true", "cwd": 5}, InvalidInput),
    ],
)
async def test_bad_start_is_a_typed_error_before_anything_runs(guest: Guest, params: dict[str, object], error: type) -> None:
    channel = await guest.link.open("process.start", params)
    with pytest.raises(error):
        await channel.receive()
    assert (await guest.ask("process.list"))["processes"] == []


@pytest.mark.parametrize("op", ["attach", "signal", "kill", "resize", "write"])
async def test_unknown_process_is_not_found(guest: Guest, op: str) -> None:
    with pytest.raises(ProcessNotFound):
        await guest.ask(f"process.{op}", id="p9-9", signal=9)


# -- killing


async def test_timeout_kills_the_whole_tree(guest: Guest) -> None:
    line = "sh -c 'echo $$ > grandchild; sleep 1000' & sleep 1000"
    done = await guest.run(line, timeout_s=1.0)
    assert done.exited["timed_out"]
    assert done.exited["signal"] == 9
    await wait_until_dead(int(await wait_for(guest.home / "grandchild")))


async def test_daemon_that_left_its_session_is_killed_with_its_tree(guest: Guest, work: str) -> None:
    if not work:
        pytest.skip("this host has no control groups for us")
    name = await guest.start("setsid sh -c 'setsid sleep 1000 & echo $! > daemon' & sleep 1000")
    pid = int(await wait_for(guest.home / "daemon"))
    await guest.ask("process.kill", id=name)
    assert (await guest.exit_of(name))["signal"] == 9
    await wait_until_dead(pid)


async def test_reset_by_the_host_kills_the_process(guest: Guest) -> None:
    channel = await guest.link.open("process.start", {"shell": "echo $$ > pid; sleep 1000"})
    pid = int(await wait_for(guest.home / "pid"))
    await channel.aclose()
    await wait_until_dead(pid)


async def test_signal_reaches_the_process_alone_or_its_tree(guest: Guest) -> None:
    name = await guest.start("trap 'echo got; exit 7' USR1; touch ready; while :; do sleep 0.05; done")
    async with asyncio.timeout(DEADLINE_S):
        while not (guest.home / "ready").exists():
            await asyncio.sleep(0.01)
    await guest.ask("process.signal", id=name, signal=10)
    assert (await guest.exit_of(name))["exit_code"] == 7
    with pytest.raises(Conflict):
        await guest.ask("process.signal", id=name, signal=10)
    other = await guest.start("sleep 1000 & sleep 1000; wait")
    await guest.ask("process.signal", id=other, signal=15, tree=True)
    assert (await guest.exit_of(other))["signal"] == 15


async def test_survivor_that_holds_stdout_does_not_hold_the_exit_up(guest: Guest) -> None:
    done = await guest.run("echo first; sleep 1000 & echo $! > survivor")
    assert done.stdout == b"first\n"
    assert done.exited["exit_code"] == 0
    pid = int(await wait_for(guest.home / "survivor"))
    assert Path(f"/proc/{pid}").exists()
    await guest.ask("process.kill", id=done.exited["id"])
    await wait_until_dead(pid)


async def test_survivor_that_floods_does_not_hold_the_exit_up(guest: Guest) -> None:
    done = await guest.run("yes & exit 4")
    assert done.exited["exit_code"] == 4
    await guest.ask("process.kill", id=done.exited["id"])


# -- output and back-pressure


async def test_large_output_is_complete(guest: Guest) -> None:
    done = await guest.run("head -c 20000000 /dev/zero; head -c 300000 /dev/zero >&2")
    assert (len(done.stdout), len(done.stderr)) == (20_000_000, 300_000)


async def test_slow_consumer_stops_the_process_and_loses_nothing(guest: Guest) -> None:
    channel = await guest.link.open("process.start", {"shell": "for i in $(seq 1 200000); do echo $i; done; touch finished"})
    channel.end()
    await asyncio.sleep(1.0)
    assert not (guest.home / "finished").exists()
    assert sum(len(event.payload) for event in channel._inbox) <= 256 * 1024
    done = await guest.collect(channel)
    assert done.stdout == b"".join(b"%d\n" % number for number in range(1, 200_001))


async def test_one_stuck_channel_does_not_stop_the_others(guest: Guest) -> None:
    stuck = [await guest.link.open("process.start", {"shell": "yes"}) for _ in range(4)]
    assert (await guest.run("echo free")).stdout == b"free\n"
    assert (await guest.ask("hello"))["generation"] == 1
    for channel in stuck:
        await channel.aclose()


async def test_background_output_is_bounded_and_says_what_was_dropped(guest: Guest) -> None:
    name = await guest.start("head -c 5000000 /dev/zero | tr '\\0' x; echo end")
    await guest.exit_of(name)
    done = await guest.attach(name)
    dropped = done.first["attached"]["dropped"]["stdout"]
    assert done.first["attached"]["stdout_offset"] == dropped > 0
    assert dropped + len(done.stdout) == 5_000_004
    assert len(done.stdout) >= 1024 * 1024
    assert done.stdout.endswith(b"xend\n")
    assert done.exited["dropped"]["stdout"] == dropped


async def test_reattach_goes_on_where_the_reader_stopped(guest: Guest) -> None:
    name = await guest.start("echo one; echo two; echo three >&2")
    await guest.exit_of(name)
    done = await guest.attach(name, stdout_offset=4, stderr_offset=None)
    assert (done.stdout, done.stderr) == (b"two\n", b"three\n")
    assert (await guest.attach(name, stdout_offset=1000)).stdout == b""


async def test_later_attach_takes_over(guest: Guest) -> None:
    name = await guest.start("cat", stdin=True)
    first = await guest.link.open("process.attach", {"id": name})
    assert isinstance(await first.receive(), Message)
    second = await guest.link.open("process.attach", {"id": name})
    assert isinstance(await second.receive(), Message)
    with pytest.raises(Conflict):
        await first.receive()
    await second.send(b"hi")
    assert await second.receive() == Data(1, b"hi")
    await second.aclose()
    assert (await guest.ask("process.list"))["processes"][0]["running"]


async def test_end_of_an_attached_host_detaches(guest: Guest) -> None:
    name = await guest.start("sleep 1000")
    async with await guest.link.open("process.attach", {"id": name}) as channel:
        channel.end()
        assert (await guest.collect(channel)).exited == {}
    await guest.ask("process.kill", id=name)


# -- input of background processes


async def test_write_feeds_a_background_process(guest: Guest) -> None:
    name = await guest.start("cat", stdin=True)
    for eof in (False, True):
        async with await guest.link.open("process.write", {"id": name, "eof": eof}) as channel:
            await channel.send(b"x" * 100_000)
            channel.end()
            assert (await guest.collect(channel)).first == {"written": 100_000}
    assert (await guest.exit_of(name))["exit_code"] == 0
    assert len((await guest.attach(name)).stdout) == 200_000


async def test_write_to_a_process_without_input_is_a_conflict(guest: Guest) -> None:
    name = await guest.start("sleep 1000")
    with pytest.raises(Conflict):
        await guest.ask("process.write", id=name)


# -- terminals


async def test_terminal_has_a_size_and_can_be_resized(guest: Guest) -> None:
    params = {"shell": "stty size; tty; read x; stty size; echo $TERM", "pty": {"rows": 40, "cols": 100}, "stdin": True}
    async with await guest.link.open("process.start", params) as channel:
        first = await channel.receive()
        assert isinstance(first, Message)
        seen = b""
        while b"/dev/pts/" not in seen:
            item = await channel.receive()
            assert isinstance(item, Data)
            seen += item.data
        await guest.ask("process.resize", id=first.body["started"]["id"], rows=50, cols=120)
        await channel.send(b"\n")
        done = await guest.collect(channel)
    assert b"40 100" in seen
    assert b"50 120" in done.stdout
    assert b"xterm-256color" in done.stdout
    assert done.exited["exit_code"] == 0


async def test_end_of_input_on_a_terminal_is_control_d(guest: Guest) -> None:
    done = await guest.run("cat; echo over", stdin=b"hello\n", pty={"rows": 24, "cols": 80})
    assert b"over" in done.stdout


async def test_resize_without_a_terminal_is_a_conflict(guest: Guest) -> None:
    name = await guest.start("sleep 1000")
    with pytest.raises(Conflict):
        await guest.ask("process.resize", id=name, rows=10, cols=10)


# -- the table


async def test_list_shows_running_and_exited(guest: Guest) -> None:
    running = await guest.start("sleep 1000")
    ended = await guest.start("exit 5")
    await guest.exit_of(ended)
    by_id = {entry["id"]: entry for entry in (await guest.ask("process.list"))["processes"]}
    assert by_id[running]["running"]
    assert by_id[running]["background"]
    assert not by_id[ended]["running"]
    assert by_id[ended]["exit_code"] == 5
    assert by_id[ended]["argv"] == ["/bin/bash", "-c", "exit 5"]


async def test_only_the_last_hundred_exited_are_kept(guest: Guest) -> None:
    for _ in range(105):
        await guest.run("exit 0")
    assert len((await guest.ask("process.list"))["processes"]) == 100
    assert len(list(Path(f"/proc/{guest.pid}/fd").iterdir())) < 60


async def test_listing_of_long_commands_fits_a_message(guest: Guest) -> None:
    for _ in range(30):
        await guest.start(f"true {'x' * 10_000}")
    assert len((await guest.ask("process.list"))["processes"]) == 30


async def test_too_many_running_is_refused(guest: Guest) -> None:
    names = [await guest.start("sleep 1000") for _ in range(128)]
    with pytest.raises(Conflict):
        await guest.start("sleep 1000")
    await guest.ask("process.kill", id=names[0])
    await guest.exit_of(names[0])
    await guest.start("true")
