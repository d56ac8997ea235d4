"""Processes against a scripted guest: what is refused before it is sent, what honest answers become, what lies end in."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from belljar.errors import AgentProtocol, CommandNotFound, Conflict, DeadlineExceeded, InvalidInput
from belljar.fleet import process as process_module
from belljar.fleet import processes as processes_module
from belljar.fleet.process import Dropped, PtySize
from belljar.fleet.processes import Processes
from tests.fleet.scripted_guest import GuestChannel, Script, ScriptedGuest, answers

STARTED = {"started": {"id": "p1", "pid": 42}}


def exited(**changes: Any) -> dict[str, Any]:
    whole = {
        "id": "p1",
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "duration_s": 0.25,
        "dropped": {"stdout": 0, "stderr": 0},
        "oom_killed": False,
    }
    return {"exited": {**whole, **changes}}


def program(stdout: bytes = b"", stderr: bytes = b"", **end: Any) -> Script:
    async def play(channel: GuestChannel) -> None:
        channel.message(STARTED)
        await channel.data(stdout, 1)
        await channel.data(stderr, 2)
        channel.message(exited(**end))
        channel.end()

    return play


async def echo(channel: GuestChannel) -> None:
    """`cat`: ends when its stdin does."""
    channel.message(STARTED)
    await channel.ended.wait()
    await channel.data(bytes(channel.received))
    channel.message(exited())
    channel.end()


async def forever(channel: GuestChannel) -> None:
    channel.message(STARTED)
    await channel.was_reset.wait()


# -- refused before anything is sent


@pytest.mark.parametrize(
    "command",
    ["", "a\0b", [], [""], ["ls", "a\0b"], ["ls", 1], ["ls", None], b"ls", 7, None, {"ls"}, ["x" * 5000], "x" * 200_000, "\ud800"],
)
async def test_a_malformed_command_is_refused_unsent(processes: Processes, guest: ScriptedGuest, command: Any) -> None:
    with pytest.raises(InvalidInput):
        await processes.run(command)
    assert guest.requests == []


@pytest.mark.parametrize(
    "options",
    [
        {"cwd": ""},
        {"cwd": "a\0"},
        {"cwd": "/" + "x" * 5000},
        {"cwd": 3},
        {"user": ""},
        {"user": "x" * 10_000},
        {"user": "a\0b"},
        {"env": {"": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A\0": "x"}},
        {"env": {"A": "x\0"}},
        {"env": {"A": 1}},
        {"env": {1: "x"}},
        {"env": ["A=1"]},
        {"env": {"A": "x" * 200_000}},
        {"env": {str(n): "x" * 1000 for n in range(200)}},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": math.nan},
        {"timeout_s": math.inf},
        {"timeout_s": 1e12},
        {"timeout_s": "5"},
        {"timeout_s": True},
        {"stdin": 5},
        {"max_output": -1},
        {"max_output": 1.5},
    ],
)
async def test_malformed_options_are_refused_unsent(processes: Processes, guest: ScriptedGuest, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await processes.run("true", **options)
    assert guest.requests == []


@pytest.mark.parametrize("size", [PtySize(0, 80), PtySize(24, -1), PtySize(65536, 80), PtySize(True, 80), PtySize("24", 80)])  # type: ignore[arg-type]
async def test_absurd_terminal_sizes_are_refused_unsent(processes: Processes, guest: ScriptedGuest, size: PtySize) -> None:
    with pytest.raises(InvalidInput):
        await processes.start("bash", pty=size)
    assert guest.requests == []


@pytest.mark.parametrize("signal", [0, -9, 65, "NOPE", "", True, 1.5])
async def test_unknown_signals_and_odd_ids_are_refused_unsent(processes: Processes, guest: ScriptedGuest, signal: Any) -> None:
    with pytest.raises(InvalidInput):
        await processes.signal("p1", signal)
    for odd in ("", "a\0", "x" * 10_000, None):
        with pytest.raises(InvalidInput):
            await processes.kill(odd)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await processes.attach("p1", stdout_offset=-1)
    assert guest.requests == []


# -- honest answers


async def test_run_returns_both_streams_and_how_it_ended(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = program(b"out\xff", b"err", exit_code=3)
    result = await processes.run(["prog", "a"], cwd="/w", env={"A": "1"}, user="root", timeout_s=5)
    assert (result.exit_code, result.signal, result.stdout, result.stderr) == (3, None, b"out\xff", b"err")
    assert (result.stdout_text, result.stderr_text, result.duration_s) == ("out\ufffd", "err", 0.25)
    assert guest.requests == [
        {
            "op": "process.start",
            "argv": ["prog", "a"],
            "cwd": "/w",
            "env": {"A": "1"},
            "user": "root",
            "timeout_s": 5.0,
            "stdin": False,
            "pty": None,
            "background": False,
        }
    ]


async def test_a_string_is_a_line_for_the_shell(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = program(exit_code=None, signal=9, timed_out=True, oom_killed=True)
    result = await processes.run("echo a | wc")
    assert guest.requests[0]["shell"] == "echo a | wc"
    assert (result.exit_code, result.signal, result.timed_out, result.oom_killed) == (None, 9, True, True)


async def test_stdin_larger_than_any_window_reaches_the_process(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = echo
    data = bytes(range(256)) * 8192
    assert (await processes.run("cat", stdin=data)).stdout == data


async def test_a_process_that_ends_without_reading_its_input_is_no_problem(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = program(b"done")
    assert (await processes.run("true", stdin=b"x" * 5_000_000)).stdout == b"done"


async def test_output_beyond_the_limit_is_counted_and_still_streamed(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = program(b"o" * 1_000_000, b"e" * 10, dropped={"stdout": 5, "stderr": 0})
    seen = bytearray()

    async def slow(data: bytes) -> None:
        await asyncio.sleep(0)
        seen.extend(data)

    result = await processes.run("flood", max_output=1000, on_stdout=slow, on_stderr=seen.extend)
    assert (len(result.stdout), result.dropped) == (1000, Dropped(stdout=999_005, stderr=0))
    assert len(seen) == 1_000_010


async def test_a_command_that_does_not_exist_is_a_typed_error(processes: Processes, guest: ScriptedGuest) -> None:
    async def refuse(channel: GuestChannel) -> None:
        channel.reset("command_not_found", "no program 'nosuch'")

    guest.script["process.start"] = refuse
    with pytest.raises(CommandNotFound, match="nosuch"):
        await processes.run(["nosuch"])


async def test_cancelling_a_run_resets_its_channel(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = forever
    running = asyncio.create_task(processes.run("sleep inf"))
    await asyncio.wait_for(guest.asked.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)


async def test_a_callback_that_fails_ends_the_run(processes: Processes, guest: ScriptedGuest) -> None:
    async def chatty(channel: GuestChannel) -> None:
        channel.message(STARTED)
        await channel.data(b"x")
        await channel.was_reset.wait()

    def fail(data: bytes) -> None:
        raise RuntimeError("the caller's own")

    guest.script["process.start"] = chatty
    with pytest.raises(RuntimeError, match="own"):
        await processes.run("chatty", on_stdout=fail)
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)


async def test_a_background_process_is_let_go_and_joined_again_when_wanted(processes: Processes, guest: ScriptedGuest) -> None:
    async def attach(channel: GuestChannel) -> None:
        assert channel.request == {"op": "process.attach", "id": "p1", "stdout_offset": 0, "stderr_offset": 0}
        channel.message({"attached": {"id": "p1", "pid": 42, "stdout_offset": 7, "stderr_offset": 0}})
        await channel.data(b"late")
        channel.message(exited(exit_code=None, signal=15))
        channel.end()

    guest.script.update({"process.start": answers(STARTED), "process.attach": attach})
    process = await processes.start("serve", background=True)
    assert (process.id, process.pid) == ("p1", 42)
    assert [output.data async for output in process] == [b"late"]
    assert (process.stdout_offset, process.dropped) == (11, Dropped(7, 0))
    ended = await process.wait()
    assert (ended.signal, ended.shell_code) == (15, 143)


async def test_detach_takes_the_process_over_so_that_nothing_kills_it(processes: Processes, guest: ScriptedGuest) -> None:
    async def attach(channel: GuestChannel) -> None:
        guest.channels[1].reset("conflict", "taken over")
        channel.message({"attached": {"id": "p1", "pid": 42, "stdout_offset": 0, "stderr_offset": 0}})

    guest.script.update({"process.start": forever, "process.attach": attach})
    process = await processes.start("serve")
    await process.detach()
    assert [request["op"] for request in guest.requests] == ["process.start", "process.attach"]
    await asyncio.wait_for(guest.channels[2].was_reset.wait(), 30)
    assert not guest.channels[1].was_reset.is_set()


async def test_only_one_reader_at_a_time(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.start"] = forever
    async with await processes.start("sleep inf") as process:
        waiting = asyncio.create_task(process.wait())
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            await anext(process)
        waiting.cancel()


async def test_signal_kill_resize_and_write_are_requests_by_id(processes: Processes, guest: ScriptedGuest) -> None:
    async def write(channel: GuestChannel) -> None:
        await channel.ended.wait()
        channel.message({"written": len(channel.received)})
        channel.end()

    guest.script.update({op: answers({}) for op in ("process.signal", "process.kill", "process.resize")})
    guest.script.update({"process.write": write, "process.start": answers(STARTED)})
    await processes.signal("p1", "term", tree=True)
    await processes.kill("p1")
    await processes.write("p1", "hällo", eof=True)
    process = await processes.start("bash", background=True)
    await process.resize(PtySize(30, 100))
    await process.write(b"more")
    asked = [{k: v for k, v in request.items() if k != "id"} for request in guest.requests]
    assert asked[0] == {"op": "process.signal", "signal": 15, "tree": True}
    assert asked[1] == {"op": "process.kill"}
    assert asked[2] == {"op": "process.write", "eof": True}
    assert asked[4] == {"op": "process.resize", "rows": 30, "cols": 100}
    assert asked[5] == {"op": "process.write", "eof": False}
    assert bytes(guest.channels[3].received) == "hällo".encode()


# -- lies and silence


INFO = {
    "id": "p1",
    "pid": 42,
    "argv": ["sleep", "1"],
    "cwd": "/",
    "user": "user",
    "started_at": 1.5,
    "running": True,
    "exit_code": None,
    "signal": None,
    "background": True,
    "pty": False,
    "stdout_bytes": 2**40,
    "stderr_bytes": 0,
}


async def test_list_tells_what_there_is(processes: Processes, guest: ScriptedGuest) -> None:
    guest.script["process.list"] = answers({"processes": [INFO, {**INFO, "running": False, "exit_code": 7}]})
    first, second = await processes.list()
    assert (first.argv, first.running, first.stdout_bytes, second.exit_code) == (("sleep", "1"), True, 2**40, 7)


@pytest.mark.parametrize(
    "lie",
    [
        {"pid": 0},
        {"pid": "42"},
        {"pid": 10**400},
        {"argv": "sleep"},
        {"argv": [1]},
        {"running": 1},
        {"stdout_bytes": -1},
        {"started_at": math.nan},
        {"started_at": 10**400},
        {"id": "x" * 1000},
        {"exit_code": 256},
        {"user": None},
    ],
)
async def test_a_list_with_a_lie_in_it_is_a_protocol_error(processes: Processes, guest: ScriptedGuest, lie: dict[str, Any]) -> None:
    guest.script["process.list"] = answers({"processes": [{**INFO, **lie}]})
    with pytest.raises(AgentProtocol):
        await processes.list()


@pytest.mark.parametrize("body", [{}, {"processes": None}, {"processes": {}}, {"processes": [[]]}, {"processes": [None]}])
async def test_a_list_of_another_shape_is_one_too(processes: Processes, guest: ScriptedGuest, body: dict[str, Any]) -> None:
    guest.script["process.list"] = answers(body)
    with pytest.raises(AgentProtocol):
        await processes.list()


@pytest.mark.parametrize(
    "script",
    [
        answers(),
        answers({}),
        answers({"started": None}),
        answers({"started": {"id": 1, "pid": 1}}),
        answers({"started": {"id": "p", "pid": -1}}),
        answers(exited()),
        answers(STARTED),
        answers(STARTED, {"hello": 1}),
        answers(STARTED, STARTED),
        answers(STARTED, exited(exit_code=None)),
        answers(STARTED, exited(signal=9)),
        answers(STARTED, exited(exit_code=-1)),
        answers(STARTED, exited(exit_code="0")),
        answers(STARTED, exited(duration_s=-1)),
        answers(STARTED, exited(timed_out=None)),
        answers(STARTED, exited(dropped=None)),
        answers(STARTED, exited(dropped={"stdout": -5, "stderr": 0})),
        answers(STARTED, exited(), exited()),
    ],
)
async def test_a_run_that_is_answered_with_nonsense_is_a_protocol_error(
    processes: Processes, guest: ScriptedGuest, script: Script
) -> None:
    guest.script["process.start"] = script
    with pytest.raises(AgentProtocol):
        await processes.run("true")
    guest.script["process.list"] = answers({"processes": []})
    assert await processes.list() == [], "one bad answer must not end the session"


async def test_an_offset_that_goes_backwards_is_a_protocol_error(processes: Processes, guest: ScriptedGuest) -> None:
    attached = {"attached": {"id": "p1", "pid": 42, "stdout_offset": 100, "stderr_offset": 0}}
    back = {"attached": {"id": "p1", "pid": 42, "stdout_offset": 99, "stderr_offset": 0}}
    guest.script["process.attach"] = answers(attached)
    process = await processes.attach("p1", stdout_offset=100)
    with pytest.raises(AgentProtocol):
        await anext(process)
    guest.script["process.attach"] = answers(back)
    with pytest.raises(AgentProtocol):
        await anext(process)


async def test_a_guest_that_does_not_keep_a_timeout_is_given_up(
    processes: Processes, guest: ScriptedGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "TIMEOUT_GRACE_S", 0.05)
    guest.script["process.start"] = forever
    with pytest.raises(DeadlineExceeded):
        await processes.run("sleep inf", timeout_s=0.05)
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)


async def test_a_guest_that_never_says_started_is_given_up(
    processes: Processes, guest: ScriptedGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(channel: GuestChannel) -> None:
        await channel.was_reset.wait()

    monkeypatch.setattr(process_module, "ANSWER_DEADLINE_S", 0.05)
    guest.script["process.start"] = silent
    with pytest.raises(DeadlineExceeded):
        await processes.run("true")
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)
