"""`belljar forward`: ports of this machine that lead to ports of a sandbox."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from belljar.cli.opening import open_fleet
from belljar.cli.render import one_line
from belljar.errors import BelljarError, InvalidInput

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.sdk._async.forwarding import Stream

MAX_PORT = 65535


class Ports(Protocol):
    """A sandbox's ports, on this machine or behind a server."""

    async def connect(self, port: int) -> Stream: ...


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

    from belljar.sdk._async.forwarding import leading

    wanted = [_parse(word) for word in args.ports]
    async with AsyncExitStack() as stack:
        ports = await stack.enter_async_context(_through(args.server, args.sandbox))
        for local, port in wanted:
            led = leading(partial(ports.connect, port), args.address, local, _tell)
            host, number = await stack.enter_async_context(led)
            shown = f"[{host}]" if ":" in host else host
            print(f"forwarding {shown}:{number} to port {port} of {one_line(args.sandbox)}", flush=True)
        await asyncio.Event().wait()
    return 0


def _tell(problem: BelljarError) -> None:
    print(f"belljar: {one_line(problem.message)}", file=sys.stderr)


def _parse(word: str) -> tuple[int, int]:
    local, _, port = word.rpartition(":")
    numbers = [int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else -1 for text in (local or port, port)]
    if not (0 <= numbers[0] <= MAX_PORT and 1 <= numbers[1] <= MAX_PORT):
        raise InvalidInput(f"{word!r} is not of the form PORT or LOCAL:PORT, with numbers up to {MAX_PORT}")
    return numbers[0], numbers[1]


# What is wrong with a sandbox is told when its ports are listed, not to the first who connects.


def _through(server: str | None, sandbox: str) -> AbstractAsyncContextManager[Ports]:
    return _directly(sandbox) if server is None else _through_server(server, sandbox)


@asynccontextmanager
async def _directly(name: str) -> AsyncIterator[Ports]:
    async with open_fleet() as fleet:
        sandbox = await fleet.get(name)
        await sandbox.wake()
        await sandbox.ports.list()
        yield sandbox.ports


@asynccontextmanager
async def _through_server(url: str, name: str) -> AsyncIterator[Ports]:
    from belljar.sdk.public import AsyncClient, AsyncSandbox

    async with AsyncClient(url) as client:
        ports = AsyncSandbox(id=name, client=client).ports
        await ports.list()
        yield ports
