"""A channel as the agent's operations see it: callbacks for those that must be quick, coroutines for the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from belljar.guest.failure import Failure, invalid
from belljar.wire.frames import HEADER_SIZE, STDOUT, decode_json

if TYPE_CHECKING:
    from belljar.guest.main import Agent


def _ignore(*_: object) -> None:
    pass


class Lost(Exception):
    """The host left this channel, or a new session began: stop working for it."""


class Channel:
    """Callbacks are plain attributes. Unless `on_data` is set, what arrives is kept for `receive`, at most one window of it."""

    __slots__ = (
        "_agent", "_held", "_inbox", "_news", "_peer_ended",
        "ended", "number", "on_data", "on_end", "on_left", "on_message", "on_room", "open", "task",
    )  # fmt: skip

    def __init__(self, agent: Agent, number: int) -> None:
        self._agent = agent
        self._inbox: deque[bytes] = deque()
        self._held = 0  # credit that the inbox has cost the host
        self._news: asyncio.Future[None] | None = None
        self._peer_ended = False
        self.number = number
        self.open = True
        self.ended = False  # by us
        self.task: asyncio.Task[None] | None = None
        self.on_data: Callable[[bytes], None] | None = None
        self.on_message: Callable[[dict[str, Any]], None] | None = None  # None: messages after the request are an error
        self.on_end: Callable[[], None] = _ignore
        self.on_room: Callable[[], None] = _ignore
        self.on_left: Callable[[bool], None] = _ignore  # True: the host reset it. False: the session is over

    # -- called by the agent

    def arrive(self, data: bytes) -> None:
        if self.on_data is not None:
            self.on_data(data)
            return
        self._inbox.append(data)
        self._held += len(data) + HEADER_SIZE
        self._wake()

    def message_arrived(self, payload: bytes) -> None:
        if self.on_message is None:
            raise invalid("this operation takes no messages after its request")
        self.consumed(len(payload))
        self.on_message(decode_json(payload))

    def peer_ended(self) -> None:
        self._peer_ended = True
        self.on_end()
        self._wake()

    def room_again(self) -> None:
        self.on_room()
        self._wake()

    def leave(self, by_host: bool) -> None:
        self.open = False
        self.on_left(by_host)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    # -- for operations: at once

    def disconnect(self) -> None:
        """Whoever set callbacks has no more interest in this channel."""
        self.on_end = self.on_room = self.on_left = _ignore

    def take_over(self, on_data: Callable[[bytes], None]) -> None:
        """From now on data goes to `on_data`, what has arrived already first; likewise the end."""
        self.on_data = on_data
        inbox, self._inbox, self._held = self._inbox, deque(), 0
        for data in inbox:
            on_data(data)
        if self._peer_ended:
            self.on_end()

    def room(self) -> int:
        return self._agent.mux.room(self.number) if self.open else 0

    def send_now(self, data: bytes, stream: int = STDOUT) -> int:
        if not self.open:
            return 0
        sent = self._agent.mux.send_data(self.number, data, stream)
        self._agent.flush_soon()
        return sent

    def message(self, body: dict[str, Any]) -> None:
        """Queue a message; without credit it waits, in order, before all later data."""
        if self.open:
            self._agent.mux.send_message(self.number, body)
            self._agent.flush_soon()

    def end(self) -> None:
        if self.open:
            self.ended = True
            self._agent.mux.send_end(self.number)
            self._agent.forget_if_over(self)
            self._agent.flush_soon()

    def fail(self, failure: Failure) -> None:
        if self.open:
            self.open = False
            self._agent.mux.reset(self.number, failure.code, failure.message, failure.details)
            self._agent.forget(self)
            self._agent.flush_soon()

    def consumed(self, size: int) -> None:
        if self.open:
            self._agent.mux.consumed(self.number, size)
            self._agent.flush_soon()

    # -- for operations: coroutines. All raise Lost when nobody listens any more

    async def send(self, data: bytes, stream: int = STDOUT) -> None:
        start = 0
        while start < len(data):
            if not self.open:
                raise Lost
            sent = self.send_now(data[start:] if start else data, stream)
            start += sent
            if not sent:
                await self._wait()

    async def send_message(self, body: dict[str, Any]) -> None:
        self.message(body)
        while self.open and self.is_stuck:
            await self._wait()
        if not self.open:
            raise Lost

    @property
    def is_stuck(self) -> bool:
        """Messages are waiting for credit."""
        return self._agent.mux.has_backlog(self.number)

    async def receive(self, at_least: int = 1) -> bytes:
        """Data of the host, joined: worth `at_least` credit (half a window at most) if so much comes, b"" after its end."""
        while self._held < at_least and not self._peer_ended:
            if not self.open:
                raise Lost
            await self._wait()
        if not self.open:
            raise Lost
        chunks = list(self._inbox)
        self._inbox.clear()
        self._held = 0
        for chunk in chunks:
            self.consumed(len(chunk))
        return b"".join(chunks)
