"""What differs between asynchronous and plain code by more than its keywords. `_sync/adaptors.py` has the same names."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Self, TypeVar

import httpx
from websockets.asyncio.client import ClientConnection, connect

from belljar.sdk.contents import as_bytes, plain_pieces
from belljar.sdk.errors import InvalidArgument
from belljar.sdk.requests import make_client

T = TypeVar("T")
Item = TypeVar("Item")

Content = bytes | bytearray | memoryview | str | Iterable[bytes] | Iterable[str] | AsyncIterable[bytes]
# What a generator function gives.
Flow = AsyncGenerator[T, None]
CancelEvent = asyncio.Event
WebSocket = ClientConnection
# Answers to pings wait behind what has not been read yet; so long the server waits too.
SILENT_S = 120.0


class Creatable:
    """Something that is created on the server: with `await`, or with `async with`."""

    async def _create(self) -> Self:
        raise NotImplementedError

    def _begin(self) -> None:
        """The constructor cannot wait."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self._create().__await__()


class HttpClients:
    """One HTTP client for each event loop, because connections belong to the loop that made them."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    def get(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # Connections hold on to their loop, so those of loops that are over would stay for ever.
            for other in list(self._clients):
                if other.is_closed():
                    self._clients.pop(other, None)
            client = self._clients[loop] = make_client(httpx.AsyncClient, httpx.AsyncHTTPTransport, self._options)
        return client

    async def aclose(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


def check_cancel(cancel: object) -> None:
    if cancel is not None and not isinstance(cancel, asyncio.Event):
        raise InvalidArgument(f"cancel must be an asyncio.Event, not {type(cancel).__name__}")


async def cancelled_within(cancel: CancelEvent | None, seconds: float) -> bool:
    """Wait; True if `cancel` was set meanwhile."""
    if cancel is None:
        await asyncio.sleep(seconds)
        return False
    try:
        async with asyncio.timeout(seconds):
            await cancel.wait()
    except TimeoutError:
        return False
    return True


async def call(callback: Callable[..., object] | None, *values: object) -> None:
    """A callback may be a function or a coroutine function."""
    if callback is not None:
        pending = callback(*values)
        if inspect.isawaitable(pending):
            await pending


async def result_of(function: Callable[..., Any], *values: object) -> Any:
    found = function(*values)
    return await found if inspect.isawaitable(found) else found


async def run_all(function: Callable[[Item], Awaitable[T]], items: Sequence[Item], limit: int) -> list[T]:
    """All of them side by side, `limit` at a time; in the order of `items`."""
    gate = asyncio.Semaphore(limit)

    async def one(item: Item) -> T:
        async with gate:
            return await function(item)

    return list(await asyncio.gather(*(one(item) for item in items)))


async def in_thread(function: Callable[..., T], *values: Any) -> T:
    """For files of this machine, which would block everybody."""
    return await asyncio.to_thread(function, *values)


async def pieces_of(content: Content) -> Flow[bytes]:
    """Any content in pieces. Files and other plain iterables are read in a thread."""
    if isinstance(content, AsyncIterable):
        async for piece in content:
            yield as_bytes(piece)
    else:
        pieces = plain_pieces(content)
        while (found := await asyncio.to_thread(next, pieces, None)) is not None:
            yield found


async def open_websocket(url: str, headers: dict[str, str], timeout: float, proxy: bool) -> WebSocket:
    return await connect(
        url,
        additional_headers=headers,
        open_timeout=timeout,
        proxy=True if proxy else None,
        compression=None,
        max_size=2**24,
        ping_timeout=SILENT_S,
    )


async def receive(socket: WebSocket, timeout: float | None) -> str | bytes:
    async with asyncio.timeout(timeout):
        return await socket.recv()
