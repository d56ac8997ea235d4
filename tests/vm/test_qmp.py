"""QMP against a scripted monitor on a real socket: order, events, refusals, nonsense, silence."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import DeadlineExceeded, SandboxGone, VmmRefused
from belljar.vm.qmp import Qmp

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GREETING = b'{"QMP": {"version": {}, "capabilities": []}}\n'


async def with_monitor(path: Path, script: Script, use: Callable[[Qmp, list[str]], Awaitable[None]], deadline_s: float = 5) -> None:
    events: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        ask = json.loads(await reader.readline())
        writer.write(json.dumps({"return": {}, "id": ask["id"]}).encode() + b"\n")
        await script(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        qmp = await Qmp.connect(path, lambda name, data: events.append(name), deadline_s)
        try:
            await use(qmp, events)
        finally:
            await qmp.aclose()


async def test_replies_are_matched_by_id_even_when_they_come_in_another_order(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, second = [json.loads(await reader.readline()) for _ in range(2)]
        writer.write(b'{"event": "STOP", "data": {}}\n')
        for ask in (second, first):
            writer.write(json.dumps({"return": ask["execute"], "id": ask["id"]}).encode() + b"\n")
        await writer.drain()
        await reader.read()

    async def use(qmp: Qmp, events: list[str]) -> None:
        assert await asyncio.gather(qmp.run("one"), qmp.run("two")) == ["one", "two"]
        assert events == ["STOP"]

    await with_monitor(tmp_path / "qmp", script, use)


async def test_a_refusal_is_an_error_and_the_next_command_works(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ask = json.loads(await reader.readline())
        writer.write(json.dumps({"error": {"class": "GenericError", "desc": "no"}, "id": ask["id"]}).encode() + b"\n")
        ask = json.loads(await reader.readline())
        writer.write(json.dumps({"return": 7, "id": ask["id"]}).encode() + b"\n")
        await reader.read()

    async def use(qmp: Qmp, events: list[str]) -> None:
        with pytest.raises(VmmRefused, match="no"):
            await qmp.run("bad")
        assert await qmp.run("good") == 7

    await with_monitor(tmp_path / "qmp", script, use)


@pytest.mark.parametrize("nonsense", [b"\xff\xfe not json\n", b"[1, 2]\n", b"x" * (2 << 20), b"[" * 100_000 + b"\n"])
async def test_nonsense_from_a_hostile_vmm_ends_the_connection_with_a_typed_error(tmp_path: Path, nonsense: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(nonsense)
        await reader.read()

    async def use(qmp: Qmp, events: list[str]) -> None:
        with pytest.raises(SandboxGone):
            await qmp.run("anything")
        with pytest.raises(SandboxGone):
            await qmp.run("later")

    await with_monitor(tmp_path / "qmp", script, use)


async def test_an_answer_to_what_nobody_can_have_asked_is_passed_over(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ask = json.loads(await reader.readline())
        for number in ([], {}, None, "1", 10**6, ask["id"]):
            writer.write(json.dumps({"return": "the answer", "id": number}).encode() + b"\n")
        await reader.read()

    async def use(qmp: Qmp, events: list[str]) -> None:
        assert await qmp.run("ask") == "the answer"

    await with_monitor(tmp_path / "qmp", script, use)


async def test_a_command_to_a_vmm_that_just_ended_is_a_machine_that_ended(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(qmp: Qmp, events: list[str]) -> None:
        qmp._reader.cancel()  # it has not come to reading that the other end is closed
        await asyncio.gather(qmp._reader, return_exceptions=True)
        qmp._sock.shutdown(socket.SHUT_WR)
        with pytest.raises(SandboxGone):
            await qmp.run("stop")

    await with_monitor(tmp_path / "qmp", script, use)


async def test_a_vmm_that_goes_away_fails_everyone_who_waits(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()

    async def use(qmp: Qmp, events: list[str]) -> None:
        outcomes: list[Any] = await asyncio.gather(qmp.run("a"), qmp.run("b"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SandboxGone, SandboxGone]

    await with_monitor(tmp_path / "qmp", script, use)


async def test_a_vmm_that_never_answers_meets_a_deadline(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(qmp: Qmp, events: list[str]) -> None:
        with pytest.raises(DeadlineExceeded, match="stop"):
            await qmp.run("stop", deadline_s=0.05)

    await with_monitor(tmp_path / "qmp", script, use)


async def test_a_monitor_that_never_greets_meets_a_deadline(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(mute, tmp_path / "qmp"):
        with pytest.raises(DeadlineExceeded, match="greet"):
            await Qmp.connect(tmp_path / "qmp", lambda name, data: None, 0.05)


async def test_a_socket_that_nobody_listens_on_is_a_machine_that_ended(tmp_path: Path) -> None:
    with pytest.raises(SandboxGone):
        await Qmp.connect(tmp_path / "missing", lambda name, data: None, 1)


async def test_paths_longer_than_a_socket_address_work(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    from belljar.vm.sockets import connect_unix, listen_unix

    with listen_unix(deep / "s") as listener:
        client = await connect_unix(deep / "s")
        server, _ = listener.accept()
        client.send(b"hello")
        assert server.recv(5) == b"hello"
        client.close()
        server.close()
