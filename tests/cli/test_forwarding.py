"""`belljar forward` in this process, with the real agent on the host for a sandbox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from belljar.errors import HostSetup, InvalidInput, SandboxNotFound
from tests.cli.conftest import Command, StubFleet


@asynccontextmanager
async def forwarding(belljar: Command, capsys: pytest.CaptureFixture[str], *words: str) -> AsyncIterator[list[int]]:
    """The command while it runs, and the local ports that it named."""
    running = asyncio.create_task(belljar("forward", *words))
    said = ""
    async with asyncio.timeout(60):
        while len(found := re.findall(r"forwarding 127\.0\.0\.1:(\d+) to port", said)) < len(words) - 1:
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)
            said += capsys.readouterr().out
    yield [int(port) for port in found]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@asynccontextmanager
async def shouting() -> AsyncIterator[int]:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()  # up to the end, which a half-closed connection has
        writer.write(data.upper())
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_bytes_go_both_ways_and_ends_too(fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]) -> None:
    async with shouting() as port, forwarding(belljar, capsys, "sb-1", f"0:{port}", f"0:{port}") as locals_, asyncio.timeout(60):
        for local in locals_:
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(b"abc" * 300_000)
            writer.write_eof()
            assert await reader.read() == b"ABC" * 300_000
            writer.close()


async def test_a_closed_port_is_a_reset_and_a_line(fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]) -> None:
    async with shouting() as port:
        pass
    async with forwarding(belljar, capsys, "sb-1", f"0:{port}") as (local,), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert f"nothing listens on port {port}" in capsys.readouterr().err


async def test_an_open_connection_does_not_keep_it_from_ending(
    fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    async with shouting() as port:
        async with forwarding(belljar, capsys, "sb-1", f"0:{port}") as (local,):
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(b"x")
            await writer.drain()
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        writer.close()


@pytest.mark.parametrize("word", ["x", "0", "65536", "1:0", "70000:80", "1:2:3", ":", "80:", "-1", "٣"])
async def test_what_is_no_port_is_refused(fleet: StubFleet, belljar: Command, word: str) -> None:
    with pytest.raises(InvalidInput):
        await belljar("forward", "sb-1", "--", word)


async def test_what_cannot_be_is_said_at_once(fleet: StubFleet, belljar: Command) -> None:
    with pytest.raises(SandboxNotFound):
        await belljar("forward", "sb-2", "80")
    async with shouting() as port:
        with pytest.raises(HostSetup, match="cannot listen"):
            await belljar("forward", "sb-1", f"{port}:80")
    with pytest.raises(InvalidInput, match="no address of a server"):
        await belljar("forward", "sb-1", "80", "--server", "nonsense")
