"""The host's side of a guest's network, as small as it can be: it answers what a test tells it to, and relays to servers here."""

from __future__ import annotations

import asyncio
import shlex
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from belljar.errors import BelljarError
from belljar.fleet.processes import Processes, ProcessResult
from belljar.fleet.sandbox import Sandbox
from belljar.settings import Settings
from belljar.store.layout import Layout
from belljar.vm.link import Channel, Data, Link, Message

DEADLINE_S = 120.0


@asynccontextmanager
async def net_host(sandbox: Sandbox, settings: Settings, **tables: Any) -> AsyncIterator[NetHost]:
    """Take the machine over from its handle, and serve its network from here."""
    await sandbox.detach()
    host = NetHost(await Link.connect(Layout(settings.home).sandbox(sandbox.id) / "agent.sock", DEADLINE_S), **tables)
    try:
        await host.serve()
        yield host
    finally:
        await host.aclose()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler, **options: Any) -> AsyncIterator[int]:
    async with await asyncio.start_server(handler, "127.0.0.1", 0, **options) as server:
        yield server.sockets[0].getsockname()[1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """HTTP, one page."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
    writer.close()


@dataclass
class NetHost:
    """`names` and `addresses` say where a connection really goes (a port on loopback), or which verdict it gets instead."""

    link: Link
    names: dict[str, int | str] = field(default_factory=dict)
    addresses: dict[str, int | str] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    silent: bool = False  # asks get no verdict at all
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _serving: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        channel = await self.link.open("net.serve", {})
        self._serving = asyncio.create_task(self._serve(channel))

    async def aclose(self) -> None:
        for task in (*self._tasks, *([self._serving] if self._serving else [])):
            task.cancel()
        await self.link.aclose()

    async def run(self, command: str, timeout_s: float = DEADLINE_S, **options: Any) -> ProcessResult:
        async def provide() -> Link:
            return self.link

        return await Processes(provide).run(command, timeout_s=timeout_s, **options)

    async def said(self, command: str, **options: Any) -> str:
        result = await self.run(command, **options)
        assert result.exit_code == 0, f"{command}: exit {result.exit_code}: {result.stdout!r} {result.stderr!r}"
        return result.stdout.decode().strip()

    async def python(self, program: str, **options: Any) -> str:
        return await self.said(shlex.join(["python3", "-c", program]), **options)

    async def wait_for_asks(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.asked) < count:
                await asyncio.sleep(0.01)

    async def _serve(self, channel: Channel) -> None:
        with suppress(BelljarError):
            async for item in channel:
                assert isinstance(item, Message)
                if "drop" in item.body:
                    self.dropped.append(item.body["drop"])
                    continue
                self.asked.append(item.body)
                if not self.silent:
                    task = asyncio.create_task(self._answer(channel, item.body))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _answer(self, serving: Channel, ask: dict[str, Any]) -> None:
        table, key = (self.names, ask["name"]) if ask.get("name") else (self.addresses, ask["address"])
        known = table.get(key, "refused")
        if isinstance(known, str):
            await serving.message({"ask": ask["ask"], "verdict": known, "reason": f"{key} is {known}"})
        elif ask["kind"] == "resolve":
            await serving.message({"ask": ask["ask"], "verdict": "resolved", "ttl": 30})
        else:
            await self._connect(serving, ask["ask"], known)

    async def _connect(self, serving: Channel, number: int, port: int) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await serving.message({"ask": number, "verdict": "refused", "reason": "the server refused"})
            return
        try:
            await self._relay(await self.link.open("net.accept", {"ask": number}), reader, writer)
        except (BelljarError, OSError):
            if not writer.transport.is_closing():  # else the server was first
                reset = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            writer.transport.abort()

    async def _relay(self, channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def outward() -> None:
            async for item in channel:
                assert isinstance(item, Data)
                writer.write(item.data)
                await writer.drain()
            writer.write_eof()

        async def inward() -> None:
            while data := await reader.read(65536):
                await channel.send(data)
            channel.end()

        try:
            async with channel, asyncio.TaskGroup() as group:
                group.create_task(outward())
                group.create_task(inward())
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None
        writer.close()
