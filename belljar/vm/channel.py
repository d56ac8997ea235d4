"""One channel of a link, as its user sees it: send with back-pressure, iterate over what comes, leave with `async with`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from belljar.errors import AgentProtocol, BelljarError, Conflict, InvalidInput, from_code
from belljar.wire.frames import CREDIT, END, MAX_PAYLOAD, MESSAGE, RESET, Event, WireError, decode_json

if TYPE_CHECKING:
    from belljar.vm.link import Link


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of one stream: 1 is stdout or a file's content, 2 is stderr."""

    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Message:
    body: dict[str, Any]


def parse_reset(payload: bytes) -> BelljarError:
    """The error that a RESET carries. A guest may put anything in there; only shapes that we know are passed on."""
    body = decode_json(payload)
    code, message, details = body.get("code"), body.get("message"), body.get("details")
    if not isinstance(code, str) or not isinstance(message, str):
        raise WireError("a reset without code and message")
    facts = details if isinstance(details, dict) else {}
    return from_code(code, message, {key: value for key, value in facts.items() if key not in ("self", "message")})


def fresh(error: BelljarError) -> BelljarError:
    """A copy to raise: one error may reach many tasks, and each raise would add its frames to a shared traceback."""
    return type(error)(error.message, **error.details)


class Channel:
    """Made by `Link.open`. What was received waits here unparsed, at most one window of it."""

    def __init__(self, link: Link, number: int, op: str) -> None:
        self._link = link
        self._number = number
        self.op = op
        self._inbox: deque[Event] = deque()
        self._news = asyncio.Event()
        self._error: BelljarError | None = None
        self._peer_ended = False
        self._closed = False

    # -- called by the link

    def _deliver(self, event: Event) -> None:
        if event.kind == RESET:
            self._fail(parse_reset(event.payload))
            return
        if event.kind == END:
            self._peer_ended = True
        elif event.kind != CREDIT:
            self._inbox.append(event)
        self._news.set()

    def _fail(self, error: BelljarError) -> None:
        if self._error is None:
            self._error = error
        self._news.set()

    # -- for the user

    async def send(self, data: bytes | bytearray | memoryview, stream: int = 0) -> None:
        """Send all of `data`, waiting for the guest to take it."""
        view, start = memoryview(data).cast("B"), 0
        while start < len(view):
            self._check()
            start += self._link._send_data(self._number, bytes(view[start : start + MAX_PAYLOAD]), stream)
            if start < len(view):
                await self._link._wait_for_room(self)

    async def message(self, body: dict[str, Any]) -> None:
        self._check()
        try:
            self._link._mux.send_message(self._number, body)
        except ValueError as error:
            raise InvalidInput(f"{self.op}: {error}") from None
        self._link._flush()
        while self._link._mux.has_backlog(self._number):
            await self._wait()
            self._check()

    def end(self) -> None:
        """Say that nothing more will be sent; receiving goes on."""
        self._link._mux.send_end(self._number)
        self._link._forget_if_over(self._number)
        self._link._flush()

    async def receive(self) -> Data | Message | None:
        """The next thing from the guest, or None at its end. What came before a failure is still handed out first."""
        while not self._inbox:
            if self._error is not None:
                raise fresh(self._error)
            if self._peer_ended:
                return None
            if self._closed:
                raise Conflict(f"{self.op}: this channel was closed on our side")
            await self._wait()
        event = self._inbox.popleft()
        self._link._consumed(self._number, len(event.payload))
        if event.kind != MESSAGE:
            return Data(event.stream, event.payload)
        try:
            return Message(decode_json(event.payload))
        except WireError as error:
            self._link._fail(AgentProtocol(f"{self.op}: the guest's agent sent a malformed message: {error}"))
            raise fresh(self._link.lost.result()) from None

    def __aiter__(self) -> AsyncIterator[Data | Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Data | Message]:
        while (item := await self.receive()) is not None:
            yield item

    def cut(self, error: BelljarError) -> None:
        """End it on behalf of its user, who gets `error` from now on; what was received and not read yet is gone."""
        self._inbox.clear()
        self._link._drop(self._number)
        self._fail(error)

    async def aclose(self) -> None:
        """Leave: an unfinished channel is reset, so that the guest stops working for it."""
        if not self._closed:
            self._closed = True
            self._inbox.clear()
            self._link._drop(self._number)
            self._news.set()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _check(self) -> None:
        if self._error is not None:
            raise fresh(self._error)
        if self._closed or not self._link._mux.is_open(self._number):
            raise Conflict(f"{self.op}: this channel is over, nothing can be sent on it")

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()
