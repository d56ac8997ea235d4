"""Ports of the guest: which are listened on, and connections to them, with everything that TCP can do."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from belljar.errors import Conflict, InvalidInput, PortClosed, SandboxError
from belljar.guest.net.inbound import MAX_CONNECTIONS
from belljar.vm.link import Channel, Data, Message
from belljar.wire.frames import MAGIC
from tests.guest.conftest import DEADLINE_S, Guest

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connect(guest: Guest, port: int, **params: object) -> Channel:
    channel = await guest.link.open("net.connect", {"port": port, **params})
    async with asyncio.timeout(DEADLINE_S):
        first = await channel.receive()
    assert isinstance(first, Message)
    assert first.body == {"connected": True}
    return channel


async def read_all(channel: Channel) -> bytes:
    data = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        async for item in channel:
            assert isinstance(item, Data)
            assert item.stream == 1
            data += item.data
    return bytes(data)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


# -- net.ports


async def test_listener_is_found_with_its_process_and_user(guest: Guest) -> None:
    program = "import socket,time; s=socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(60)"
    async with await guest.link.open("process.start", {"argv": ["python3", "-c", program]}) as channel:
        started, line = await channel.receive(), await channel.receive()
        assert isinstance(started, Message)
        assert isinstance(line, Data)
        ports = {entry["port"]: entry for entry in (await guest.ask("net.ports"))["ports"]}
        found = ports[int(line.data)]
        assert found["address"] == "127.0.0.1"
        assert found["pid"] == started.body["started"]["pid"]
        assert found["process"].startswith("python3")
        assert found["user"] == (await guest.run("id -un")).stdout.decode().strip()


async def test_addresses_of_both_families_are_told(guest: Guest) -> None:
    async with listening(echo, "0.0.0.0") as four, listening(echo, "::1") as six:
        found = {entry["port"]: entry["address"] for entry in (await guest.ask("net.ports"))["ports"]}
        assert found[four] == "0.0.0.0"
        assert found[six] == "::1"
    found = {entry["port"] for entry in (await guest.ask("net.ports"))["ports"]}
    assert not found & {four, six}, "a port that was closed is still listed"


# -- net.connect


async def test_bytes_go_both_ways_and_the_ends_too(guest: Guest) -> None:
    async with listening(echo) as port:
        channel = await connect(guest, port)
        await channel.send(b"hello")
        channel.end()
        assert await read_all(channel) == b"hello"


async def test_half_closed_connection_goes_on_the_other_way(guest: Guest) -> None:
    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        everything = await reader.read(-1)
        writer.write(b"got %d" % len(everything))
        writer.close()

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        received.append(await reader.read(-1))
        writer.close()
        done.set()

    received: list[bytes] = []
    done = asyncio.Event()
    async with listening(answer_at_the_end) as port:
        channel = await connect(guest, port)
        await channel.send(b"x" * 1000)
        channel.end()
        assert await read_all(channel) == b"got 1000"
    async with listening(end_first) as port:
        channel = await connect(guest, port)
        assert await read_all(channel) == b"bye"
        await channel.send(b"still here")
        channel.end()
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        assert received == [b"still here"]


async def test_a_lot_of_data_arrives_whole_with_marks_of_the_wire_in_it(guest: Guest) -> None:
    block = os.urandom(99_990) + MAGIC * 40 + bytes(10)
    size = 200

    async def send(channel: Channel) -> None:
        for _ in range(size):
            await channel.send(block)
        channel.end()

    async with listening(echo) as port:
        channel = await connect(guest, port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send(channel))
            received = tasks.create_task(read_all(channel))
        expected = hashlib.sha256()
        for _ in range(size):
            expected.update(block)
        assert hashlib.sha256(received.result()).digest() == expected.digest()


async def test_reader_that_stops_stops_the_sender_and_harms_nobody(guest: Guest) -> None:
    """Both ways: a program that does not read, and a host that does not."""
    gate = asyncio.Event()

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.close()

    async def never_stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        except ConnectionError:
            pass

    async with listening(never_read) as deaf, listening(never_stop) as loud:
        sending = await connect(guest, deaf)
        unread = await connect(guest, loud)
        task = asyncio.create_task(sending.send(bytes(64 * 1024 * 1024)))
        before = await resident_kib(guest)
        for _ in range(50):
            assert (await guest.ask("hello"))["agent_start"] == 1
        assert not task.done(), "64 MiB went to a program that reads nothing"
        assert await resident_kib(guest) - before < 8 * 1024
        task.cancel()
        await sending.aclose()
        await unread.aclose()
        gate.set()


async def resident_kib(guest: Guest) -> int:
    text = await asyncio.to_thread(lambda: open(f"/proc/{guest.pid}/status").read())  # noqa: PTH123, SIM115
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))


async def test_reset_by_the_program_reaches_the_host(guest: Guest) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with listening(reset) as port:
        channel = await connect(guest, port)
        await channel.send(b"x")
        with pytest.raises(SandboxError, match="broke"):
            await read_all(channel)


@pytest.mark.parametrize("way", ["reset", "session"])
async def test_reset_by_the_host_reaches_the_program(guest: Guest, way: str) -> None:
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.set_result("end" if not await reader.read() else "data")
        except ConnectionResetError:
            seen.set_result("reset")
        writer.close()

    async with listening(wait) as port:
        channel = await connect(guest, port)
        if way == "reset":
            await channel.aclose()
        else:
            await guest.reconnect()
        async with asyncio.timeout(DEADLINE_S):
            assert await seen == "reset"
    assert (await guest.ask("hello"))["agent_start"] == 1


async def test_closed_port_says_which_ports_are_open(guest: Guest) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with listening(echo) as open_port:
            with pytest.raises(PortClosed, match=f"nothing listens on port {port} in the sandbox; these ports are") as problem:
                await connect(guest, port)
            assert problem.value.details["port"] == port
            assert open_port in problem.value.details["listening"] or len(problem.value.details["listening"]) == 20


async def test_server_on_ipv6_loopback_alone_is_reached(guest: Guest) -> None:
    async with listening(echo, "::1") as port:
        channel = await connect(guest, port)
        channel.end()
        assert await read_all(channel) == b""
        with pytest.raises(PortClosed, match=r"at 127\.0\.0\.1"):
            await connect(guest, port, address="127.0.0.1")


@pytest.mark.parametrize(
    "params",
    [{}, {"port": 0}, {"port": 65536}, {"port": "80"}, {"port": 80, "address": "8.8.8.8"}, {"port": 80, "address": "example.com"},
     {"port": 80, "address": "198.18.1.0"}, {"port": 80, "address": "::ffff:8.8.8.8"}, {"port": 80, "address": "0.0.0.0"}],
)  # fmt: skip
async def test_only_ports_of_the_sandbox_itself(guest: Guest, params: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        await guest.ask("net.connect", **params)


async def test_many_connections_at_once_and_one_too_many(guest: Guest) -> None:
    async with listening(echo) as port:
        channels = [await connect(guest, port) for _ in range(MAX_CONNECTIONS)]
        with pytest.raises(Conflict, match="open already"):
            await connect(guest, port)
        for number, channel in enumerate(channels):
            await channel.send(b"%d" % number)
            channel.end()
        for number, channel in enumerate(channels):
            assert await read_all(channel) == b"%d" % number
        await (await connect(guest, port)).aclose()


async def test_accept_of_an_ask_that_was_never_asked(guest: Guest) -> None:
    with pytest.raises(InvalidInput, match="no network"):
        await guest.ask("net.accept", ask=5)
