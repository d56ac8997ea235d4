"""`belljar forward`: ports of this machine that lead to ports of a sandbox."""

from __future__ import annotations

import argparse
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from belljar.cli.opening import open_fleet
from belljar.cli.render import one_line
from belljar.errors import BelljarError, HostSetup, InvalidInput

if TYPE_CHECKING:
    import asyncio

    from belljar.cli.opening import Commands

MAX_PORT = 65535
PIECE = 65536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Stream(Protocol):
    """A connection to a port of a sandbox, however it is made."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def write_eof(self) -> None: ...


Dial = Callable[[int], AbstractAsyncContextManager[Stream]]
Answer = Callable[["asyncio.StreamReader", "asyncio.StreamWriter"], Awaitable[None]]


def register(commands: Commands) -> None:
    forward = commands.add_parser(
        "forward",
        help="lead ports of this machine to ports of a sandbox, until it is told to stop",
        description="A sandbox that a server holds is busy for others: go through that server with --server.",
    )
    forward.add_argument("sandbox", metavar="ID")
    forward.add_argument("ports", nargs="+", metavar="[LOCAL:]PORT", help="one number for both sides, or LOCAL here; 0 picks one")
    forward.add_argument("--address", default="127.0.0.1", help="where to listen (default: 127.0.0.1, for this machine alone)")
    forward.add_argument("--server", metavar="URL", help="through a server; its token is read from $BELLJAR_API_KEY")
    forward.set_defaults(handler=forward_ports)


async def forward_ports(args: argparse.Namespace) -> int:
    import asyncio
    from contextlib import AsyncExitStack

    wanted = [_parse(word) for word in args.ports]
    async with AsyncExitStack() as stack:
        dial = await stack.enter_async_context(_through(args.server, args.sandbox))
        answering: set[asyncio.Task[None]] = set()
        for local, port in wanted:
            server = await _listen(args.address, local, _answer(dial, port, answering))
            stack.callback(server.close)
            host, number = server.sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"forwarding {shown}:{number} to port {port} of {one_line(args.sandbox)}", flush=True)
        stack.push_async_callback(_end, answering)
        await asyncio.Event().wait()
    return 0


async def _end(answering: set[asyncio.Task[None]]) -> None:
    import asyncio

    for task in answering:
        task.cancel()
    await asyncio.gather(*answering, return_exceptions=True)


def _parse(word: str) -> tuple[int, int]:
    local, _, port = word.rpartition(":")
    numbers = [int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else -1 for text in (local or port, port)]
    if not (0 <= numbers[0] <= MAX_PORT and 1 <= numbers[1] <= MAX_PORT):
        raise InvalidInput(f"{word!r} is not of the form PORT or LOCAL:PORT, with numbers up to {MAX_PORT}")
    return numbers[0], numbers[1]


def _through(server: str | None, sandbox: str) -> AbstractAsyncContextManager[Dial]:
    if server is None:
        return _directly(sandbox)
    from belljar.cli.remote import through_server

    return through_server(server, sandbox)


@asynccontextmanager
async def _directly(name: str) -> AsyncIterator[Dial]:
    async with open_fleet() as fleet:
        sandbox = await fleet.get(name)
        await sandbox.wake()
        await sandbox.ports.list()  # what is wrong with it is told now, not to the first who connects

        @asynccontextmanager
        async def dial(port: int) -> AsyncIterator[Stream]:
            async with await sandbox.ports.connect(port) as stream:
                yield stream

        yield dial


async def _listen(address: str, port: int, answer: Answer) -> asyncio.Server:
    import asyncio

    try:
        return await asyncio.start_server(answer, address, port)
    except OSError as problem:
        raise HostSetup(f"cannot listen on {address} port {port}: {problem.strerror or problem}") from problem


def _answer(dial: Dial, port: int, answering: set[asyncio.Task[None]]) -> Answer:
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        task.add_done_callback(answering.discard)
        try:
            async with dial(port) as stream:
                await _join(reader, writer, stream)
            writer.close()
        except BelljarError as problem:
            print(f"belljar: {one_line(problem.message)}", file=sys.stderr)
        except (OSError, asyncio.CancelledError):
            pass  # whoever connected has gone, or the command ends
        finally:
            if not writer.is_closing():
                # A reset: whoever waits here must not take this for the end of the data.
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()

    return answer


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
    """Both directions, each to its own end. The first that breaks ends the other."""
    import asyncio

    async def inward() -> None:
        while data := await reader.read(PIECE):
            await stream.write(data)
        await stream.write_eof()

    async def outward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    tasks = [asyncio.create_task(inward()), asyncio.create_task(outward())]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
