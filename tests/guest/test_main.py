"""The agent as a whole: sessions, dispatch, and what it survives."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from belljar.errors import AgentLost, BelljarError, InvalidInput
from belljar.vm.link import Message
from belljar.wire.frames import DATA, MAX_PAYLOAD, MESSAGE, OPEN, encode_header
from tests.guest.conftest import DEADLINE_S, Guest

NAMES = (
    *("argv", "shell", "env", "stdin", "pty", "timeout_s", "background", "id", "path", "target", "recursive", "depth", "offset"),
    *("length", "mode", "append", "atomic", "signal", "tree", "rows", "cols", "eof", "stdout_offset", "parents", "user", "cwd"),
)
OPERATIONS = [
    *(f"process.{name}" for name in ("start", "attach", "list", "signal", "kill", "resize", "write")),
    *(f"file.{name}" for name in ("read", "write", "list", "stat", "mkdir", "move", "copy", "remove", "watch")),
]


async def test_hello_says_who_answers(guest: Guest) -> None:
    answer = await guest.ask("hello")
    assert answer["generation"] == 1
    assert answer["agent_start"] == 1
    assert len(answer["boot_id"]) == 36
    assert answer["kernel"] == os.uname().release


@pytest.mark.parametrize("op", ["no.such", "", 5, None, ["hello"]])
async def test_unknown_operation_is_invalid_input(guest: Guest, op: Any) -> None:
    with pytest.raises(InvalidInput):
        await guest.ask(op)


async def test_message_after_the_request_is_invalid_input(guest: Guest) -> None:
    async with await guest.link.open("file.write", {"path": "x"}) as channel:
        await channel.message({"more": 1})
        with pytest.raises(InvalidInput):
            await channel.receive()


async def test_request_that_is_no_json_object_is_invalid_input(guest: Guest) -> None:
    channel = await guest.link.open("hello", {})
    await guest.collect(channel)
    number = guest.link._mux._last + 1
    guest.sock.setblocking(True)
    for offset, text in enumerate((b"[]", b"{{", b"\xff\xff", b"[" * 5000)):
        guest.sock.sendall(encode_header(OPEN, number + offset, len(text)) + text)
    guest.link._mux._last += 10
    assert (await guest.ask("hello"))["generation"] == 1
    assert guest.link.restarts == 0


async def test_any_types_in_any_request_are_survived(guest: Guest) -> None:
    rng = random.Random(3)
    values = [None, True, -1, 0, 3, 2.5, 1e300, "", "x", "a\0b", "/", ".", [], ["x"], [1], {}, {"a": 1}, "\udcff", 1 << 70]
    (guest.home / "x").mkdir()
    for _ in range(300):
        params = {name: rng.choice(values) for name in rng.sample(NAMES, rng.randint(0, 12))}
        if params.get("path") == "/":  # removing it would be obeyed
            continue
        try:
            async with await guest.link.open(rng.choice(OPERATIONS), params) as channel:
                await asyncio.wait_for(channel.receive(), 0.3)
        except (BelljarError, TimeoutError) as error:
            assert getattr(error, "code", "") != "internal", (params, error)
    assert (await guest.ask("hello"))["generation"] == 1


# -- sessions


async def test_process_survives_its_session_and_loses_no_output(guest: Guest) -> None:
    channel = await guest.link.open("process.start", {"shell": "for i in $(seq 1 300); do echo $i; sleep 0.005; done; exit 9"})
    first = await channel.receive()
    assert isinstance(first, Message)
    name = first.body["started"]["id"]
    for _ in range(3):
        await guest.reconnect()
    done = await guest.attach(name, stdout_offset=0)
    assert done.stdout == b"".join(b"%d\n" % number for number in range(1, 301))
    assert done.exited["exit_code"] == 9


async def test_new_session_in_the_middle_of_a_flood_is_clean(guest: Guest) -> None:
    floods = [await guest.link.open("process.start", {"shell": "yes"}) for _ in range(3)]
    for _ in range(5):
        await guest.reconnect()
        assert (await guest.ask("hello"))["generation"] == 1
    with pytest.raises(BelljarError):
        await guest.collect(floods[0])
    for entry in (await guest.ask("process.list"))["processes"]:
        await guest.ask("process.kill", id=entry["id"])


async def test_half_a_frame_of_the_old_session_is_forgotten(guest: Guest) -> None:
    guest.sock.send(encode_header(OPEN, 500, 1000) + b"x" * 300)
    await guest.reconnect()
    assert (await guest.ask("hello"))["generation"] == 1
    assert guest.link.restarts == 0


async def test_write_of_a_lost_session_leaves_nothing_behind(guest: Guest) -> None:
    channel = await guest.link.open("file.write", {"path": "x"})
    await channel.send(bytes(500_000))
    await guest.reconnect()
    async with asyncio.timeout(DEADLINE_S):
        while list(guest.home.iterdir()):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 100,
        encode_header(DATA, 900, 1) + b"x",
        encode_header(MESSAGE, 1, MAX_PAYLOAD + 1),
        encode_header(DATA, 2, 1, 2) + b"x",
    ],
)
async def test_garbage_from_the_host_costs_the_session_only(guest: Guest, garbage: bytes) -> None:
    running = await guest.start("sleep 1000")
    channel = await guest.link.open("process.attach", {"id": running})
    await channel.receive()
    guest.sock.send(garbage)
    with pytest.raises(AgentLost):
        await channel.receive()
    assert [entry["running"] for entry in (await guest.ask("process.list"))["processes"]] == [True]
    assert guest.link.restarts == 1


async def test_pings_are_answered_under_load(guest: Guest) -> None:
    async with await guest.link.open("process.start", {"shell": "yes"}):
        for _ in range(10):
            await guest.link.ping(DEADLINE_S)
