"""What differs between plain and asynchronous code by more than its keywords. Written by hand, as `_async/adaptors.py` is."""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self, TypeVar

import httpx
from websockets.sync.client import ClientConnection, connect

from belljar.sdk.contents import plain_pieces
from belljar.sdk.errors import InvalidArgument
from belljar.sdk.requests import make_client

T = TypeVar("T")
Item = TypeVar("Item")

Content = bytes | bytearray | memoryview | str | Iterable[bytes] | Iterable[str]
# What a generator function gives.
Flow = Generator[T, None, None]
WebSocket = ClientConnection
# Answers to pings wait behind what has not been read yet; so long the server waits too.
SILENT_S = 120.0


class CancelEvent(Protocol):
    """A threading.Event or multiprocessing.Event."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> Any: ...


class Creatable:
    """Something that is created on the server, by its constructor."""

    def _create(self) -> Self:
        raise NotImplementedError

    def _begin(self) -> None:
        self._create()


class HttpClients:
    """The HTTP client, made when it is first needed, and closed with the program at the latest."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._forget()

    def _forget(self) -> None:
        self._client: httpx.Client | None = None
        self._close: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def get(self) -> httpx.Client:
        if self._owner != os.getpid():
            # Forked off: on its parent's connections, each would read the other's answers.
            self._forget()
        with self._lock:
            if self._client is None:
                self._client = make_client(httpx.Client, httpx.HTTPTransport, self._options)
                self._close = weakref.finalize(self, self._client.close)
            return self._client

    def close(self) -> None:
        close, self._client, self._close = self._close, None, None
        if close is not None:
            close()


def check_cancel(cancel: object) -> None:
    if cancel is None:
        return
    wait = getattr(cancel, "wait", None)
    if not callable(wait) or not callable(getattr(cancel, "is_set", None)) or inspect.iscoroutinefunction(wait):
        raise InvalidArgument(f"cancel must be a threading.Event or multiprocessing.Event, not {type(cancel).__name__}")


def cancelled_within(cancel: CancelEvent | None, seconds: float) -> bool:
    """Wait; True if `cancel` was set meanwhile."""
    if cancel is None:
        time.sleep(seconds)
        return False
    return bool(cancel.wait(seconds))


def call(callback: Callable[..., object] | None, *values: object) -> None:
    if callback is not None:
        callback(*values)


def result_of(function: Callable[..., Any], *values: object) -> Any:
    return function(*values)


def run_all(function: Callable[[Item], T], items: Sequence[Item], limit: int) -> list[T]:
    """All of them side by side, `limit` at a time; in the order of `items`."""
    with ThreadPoolExecutor(max_workers=limit) as pool:
        return list(pool.map(function, items))


def in_thread(function: Callable[..., T], *values: Any) -> T:
    """Here nobody else is held up."""
    return function(*values)


def pieces_of(content: Content) -> Flow[bytes]:
    """Any content in pieces."""
    return plain_pieces(content)


def open_websocket(url: str, headers: dict[str, str], timeout: float, proxy: bool) -> WebSocket:
    opened = connect(
        url,
        additional_headers=headers,
        open_timeout=timeout,
        proxy=True if proxy else None,
        compression=None,
        max_size=2**24,
        ping_timeout=SILENT_S,
    )
    return opened.__enter__()  # newer versions of the library want to be entered; `close` is what leaving does


def receive(socket: WebSocket, timeout: float | None) -> str | bytes:
    return socket.recv(timeout)
