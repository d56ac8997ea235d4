"""Ports of a guest: against a guest that lies, against the real agent on the host, and against a real sandbox."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from belljar.errors import AgentProtocol, InvalidInput, PortClosed, SandboxError, Unauthorized, WrongState
from belljar.fleet.ports import ListeningPort, Ports
from belljar.fleet.process import LinkProvider
from belljar.fleet.sandbox import Sandbox
from belljar.wire.frames import RESET
from tests.conftest import CreateSandbox
from tests.fleet.scripted_guest import GuestChannel, ScriptedGuest, answers

GOOD = {"port": 80, "address": "127.0.0.1", "pid": 7, "process": "web", "user": "user"}
COUNTING = """
import asyncio
async def serve(reader, writer):
    size = 0
    while data := await reader.read(65536):
        size += len(data)
    writer.write(b"%d" % size)
    await writer.drain()
    writer.close()
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", 7070) as server:
        await server.serve_forever()
asyncio.run(main())
"""


# -- a guest that answers as it is told ------------------------------------------------------------------------------------------


async def test_ports_are_listed_by_number(guest: ScriptedGuest, links: LinkProvider) -> None:
    sparse = {"port": 22, "address": "::", "pid": None, "process": None, "user": None}
    guest.script["net.ports"] = answers({"ports": [GOOD, sparse], "truncated": False})
    assert await Ports(links).list() == [ListeningPort(22, "::"), ListeningPort(80, "127.0.0.1", 7, "web", "user")]


@pytest.mark.parametrize(
    "lie",
    [
        {}, {"ports": None}, {"ports": {}}, {"ports": [1]}, {"ports": [{}]},
        {"ports": [{**GOOD, "port": 0}]}, {"ports": [{**GOOD, "port": 65536}]}, {"ports": [{**GOOD, "port": "80"}]},
        {"ports": [{**GOOD, "address": "localhost"}]}, {"ports": [{**GOOD, "address": None}]}, {"ports": [{**GOOD, "pid": -1}]},
        {"ports": [{**GOOD, "process": "x" * 300}]}, {"ports": [{**GOOD, "user": 5}]},
    ],
    ids=lambda lie: str(lie)[:40],
)  # fmt: skip
async def test_lies_about_ports_are_noticed(guest: ScriptedGuest, links: LinkProvider, lie: dict[str, Any]) -> None:
    guest.script["net.ports"] = answers(lie)
    with pytest.raises(AgentProtocol):
        await Ports(links).list()


async def test_nothing_listens_is_an_error_of_its_own(guest: ScriptedGuest, links: LinkProvider) -> None:
    async def closed(channel: GuestChannel) -> None:
        channel.reset("port_closed", "nothing listens on port 81")

    guest.script["net.connect"] = closed
    with pytest.raises(PortClosed, match="81"):
        await Ports(links).connect(81)
    assert guest.requests[-1] == {"op": "net.connect", "port": 81}


@pytest.mark.parametrize("body", [{}, {"connected": False}, {"connected": 1}])
async def test_a_connection_must_be_confirmed(guest: ScriptedGuest, links: LinkProvider, body: dict[str, Any]) -> None:
    guest.script["net.connect"] = answers(body)
    with pytest.raises(AgentProtocol):
        await Ports(links).connect(80)


async def test_only_bytes_may_follow(guest: ScriptedGuest, links: LinkProvider) -> None:
    for wrong in ("message", "stream"):

        async def connected(channel: GuestChannel, wrong: str = wrong) -> None:
            channel.message({"connected": True})
            if wrong == "message":
                channel.message({"more": 1})
            else:
                await channel.data(b"x", stream=2)

        guest.script["net.connect"] = connected
        async with await Ports(links).connect(80) as stream:
            with pytest.raises(AgentProtocol):
                await stream.read()


async def test_bytes_ends_and_resets(guest: ScriptedGuest, links: LinkProvider) -> None:
    channels: list[GuestChannel] = []

    async def connected(channel: GuestChannel) -> None:
        channels.append(channel)
        channel.message({"connected": True})
        await channel.data(b"hello")
        await channel.ended.wait()
        await channel.data(b"bye")
        if len(channels) == 1:
            channel.end()
        else:
            channel.reset("connection_reset", "it broke")

    guest.script["net.connect"] = connected
    async with await Ports(links).connect(80) as stream:
        assert [await stream.read(2), await stream.read(2), await stream.read(2)] == [b"he", b"ll", b"o"]
        await stream.write(b"request")
        await stream.write_eof()
        assert [await stream.read(), await stream.read(), await stream.read()] == [b"bye", b"", b""]
    assert channels[0].received == b"request" and not channels[0].was_reset.is_set()
    async with await Ports(links).connect(80) as stream:
        await stream.read()
        await stream.write_eof()
        assert await stream.read() == b"bye"  # what came before the break is still handed out
        with pytest.raises(SandboxError, match="it broke"):
            await stream.read()


async def test_a_connection_that_is_cut_says_why_to_reader_and_writer(guest: ScriptedGuest, links: LinkProvider) -> None:
    opened: asyncio.Queue[GuestChannel] = asyncio.Queue()

    async def deaf(channel: GuestChannel) -> None:
        channel.deliver = lambda event: channel.was_reset.set() if event.kind == RESET else None  # type: ignore[method-assign]
        channel.message({"connected": True})
        await channel.data(b"read in part, ")
        opened.put_nowait(channel)

    guest.script["net.connect"] = deaf
    async with await Ports(links).connect(80) as stream:
        channel = await opened.get()
        assert await stream.read(4) == b"read"
        writing = asyncio.create_task(stream.write(bytes(8 << 20)))
        await asyncio.sleep(0.05)
        stream.cut(Unauthorized("no longer"))
        async with asyncio.timeout(30):
            for waiting in (writing, stream.read(), stream.write(b"x")):
                with pytest.raises(Unauthorized, match="no longer"):
                    await waiting
            await channel.was_reset.wait()
    stream.cut(Unauthorized("too late to matter"))
    async with await Ports(links).connect(80) as stream:
        assert await stream.read() == b"read in part, "
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0.05)
        stream.cut(Unauthorized("no longer"))
        async with asyncio.timeout(30):
            with pytest.raises(Unauthorized, match="no longer"):
                await reading


async def test_leaving_resets_and_a_slow_guest_makes_the_writer_wait(guest: ScriptedGuest, links: LinkProvider) -> None:
    opened: asyncio.Queue[GuestChannel] = asyncio.Queue()

    async def deaf(channel: GuestChannel) -> None:
        channel.deliver = lambda event: channel.was_reset.set() if event.kind == 4 else None  # type: ignore[method-assign]
        channel.message({"connected": True})
        opened.put_nowait(channel)

    guest.script["net.connect"] = deaf
    stream = await Ports(links).connect(80)
    writing = asyncio.create_task(stream.write(bytes(50_000_000)))
    done, _ = await asyncio.wait([writing], timeout=0.5)
    assert not done, "a guest that takes nothing was sent 50 MB"
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await stream.aclose()
    channel = await opened.get()
    async with asyncio.timeout(30):
        while guest.mux.is_open(channel._number):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("port", [0, -1, 65536, "80", 80.0, True, None])
async def test_what_is_no_port_is_refused_here(links: LinkProvider, port: Any) -> None:
    with pytest.raises(InvalidInput):
        await Ports(links).connect(port)


# -- the real agent --------------------------------------------------------------------------------------------------------------


async def test_the_agent_connects_to_a_server(real_links: LinkProvider) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data.upper())
            await writer.drain()
        writer.write(b"!")
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert port in [each.port for each in await Ports(real_links).list()]
        async with await Ports(real_links).connect(port) as stream:
            data, heard = b"abc" * 500_000, bytearray()

            async def talk() -> None:
                await stream.write(data)
                await stream.write_eof()

            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                tasks.create_task(talk())
                while piece := await stream.read():
                    heard += piece
        assert hashlib.sha256(heard).digest() == hashlib.sha256(data.upper() + b"!").digest()
    with pytest.raises(PortClosed, match=str(port)):
        await Ports(real_links).connect(port)


# -- a real sandbox --------------------------------------------------------------------------------------------------------------


async def counted(sandbox: Sandbox, size: int) -> int:
    async with asyncio.timeout(120), await sandbox.ports.connect(7070) as stream:
        await stream.write(bytes(size))
        await stream.write_eof()
        return int(await stream.read())


async def test_ports_of_a_sandbox_through_fork_and_sleep(create: CreateSandbox) -> None:
    sandbox = await create()
    assert await sandbox.ports.list() == []
    await sandbox.files.write("/tmp/counting.py", COUNTING)
    await sandbox.processes.start("python3 /tmp/counting.py", background=True)
    async with asyncio.timeout(120):
        while not (found := await sandbox.ports.list()):
            await asyncio.sleep(0.2)
    assert [(each.port, each.address, each.process, each.user) for each in found] == [(7070, "127.0.0.1", "python3", "user")]
    assert await counted(sandbox, 3_000_000) == 3_000_000
    with pytest.raises(PortClosed, match="7071"):
        await sandbox.ports.connect(7071)
    async with await sandbox.ports.connect(7070) as before:
        (child,) = await sandbox.fork()
        try:
            assert await counted(child, 10) == 10
        finally:
            await child.kill()
        await before.write(b"12345")  # the parent's connections know nothing of the fork
        await before.write_eof()
        assert await before.read() == b"5"
    async with await sandbox.ports.connect(7070) as cut:
        await sandbox.hibernate()
        with pytest.raises(WrongState, match="put to sleep"):
            await cut.read()
    await sandbox.wake()
    assert await counted(sandbox, 20) == 20
