"""One cell on its way through a guest: events to iterate over, or an execution to wait for."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from belljar.errors import AgentProtocol, Conflict, DeadlineExceeded
from belljar.fleet.cell_reader import Budget, CellReader
from belljar.fleet.execution import Done, Event, Execution, Failure, Fold, Output, Started, Stderr, Stdout
from belljar.fleet.process import LinkProvider, next_event
from belljar.vm.link import Channel, Data, Message

# The guest interrupts a cell whose time is over, and starts the context afresh if that does not help. The host waits this
# much longer for it before it calls the guest broken.
TIMEOUT_GRACE_S = 45.0

Callback = Callable[[Any], Awaitable[None] | None]


class Witness(Protocol):
    """Knows what happened outside of a cell while it ran."""

    def notes(self) -> tuple[str, ...]: ...


Watch = Callable[[], Witness]


class Cell:
    """A cell as its caller follows it: iterate over its events, or wait for its execution.

    Nothing is sent before the first event is asked for. Leaving early (`aclose`, or `async with`) leaves the cell to the
    `on_disconnect` that it was started with; one that was only attached to is not touched.
    """

    def __init__(
        self,
        links: LinkProvider,
        op: str,
        params: Mapping[str, Any],
        code: bytes | None,
        budget: Budget,
        watch: Watch | None = None,
    ) -> None:
        self._links, self._op, self._params, self._code = links, op, params, code
        self._watch = watch
        self._witness: Witness | None = None
        self._reader = CellReader(budget)
        self._fold = Fold()
        self._events: deque[Event] = deque()
        self._channel: Channel | None = None
        self._deadline: float | None = None
        self._closed = False
        self._reading = False

    async def __aenter__(self) -> Cell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Cell:
        return self

    async def __anext__(self) -> Event:
        if self._reading:
            raise Conflict("the events of this cell are being read already; one reader at a time")
        self._reading = True
        try:
            return await self._next()
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._reading = False

    async def _next(self) -> Event:
        while not self._events:
            if self._fold.over:
                raise StopAsyncIteration
            if self._channel is None:
                self._channel = await self._open()
            item = await self._receive(self._channel)
            if item is None:
                raise AgentProtocol("the guest ended the stream of a cell without saying how it went")
            for event in self._reader.take(item):
                if isinstance(event, Done) and self._witness is not None:
                    event = replace(event, notes=self._witness.notes())
                self._fold.take(event)
                self._events.append(event)
            if self._fold.over:
                await self._finish(self._channel)
        event = self._events.popleft()
        if isinstance(event, Started) and (timeout_s := self._params.get("timeout_s")) is not None:
            self._deadline = asyncio.get_running_loop().time() + timeout_s + TIMEOUT_GRACE_S
        return event

    async def _open(self) -> Channel:
        if self._closed:
            raise Conflict("this cell was closed on our side; attach to its context to follow it again")
        link = await self._links()
        self._witness = self._watch() if self._watch is not None else None
        channel = await link.open(self._op, dict(self._params))
        try:
            if self._code is not None:
                await channel.send(self._code)
            channel.end()
        except BaseException:
            await channel.aclose()
            raise
        return channel

    async def _receive(self, channel: Channel) -> Data | Message | None:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await channel.receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the cell was to be stopped by the guest after {self._params['timeout_s']:g} s, and its end was never reported; "
                "the guest is overloaded or no longer answers"
            ) from None

    async def _finish(self, channel: Channel) -> None:
        """The guest's end is awaited, so that a reset does not overtake it."""
        if await next_event(channel, "the end of a cell") is not None:
            raise AgentProtocol("the guest went on sending after the cell was done")
        await self.aclose()

    async def wait(
        self,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
        on_error: Callback | None = None,
    ) -> Execution:
        """Until the cell is done; each callback gets its kind of event as it comes."""
        async with self:
            async for event in self:
                match event:
                    case Stdout(text):
                        await _call(on_stdout, text)
                    case Stderr(text):
                        await _call(on_stderr, text)
                    case Output(result):
                        await _call(on_result, result)
                    case Failure(error):
                        await _call(on_error, error)
        return self._fold.execution

    async def aclose(self) -> None:
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()


async def _call(callback: Callback | None, value: object) -> None:
    if callback is not None:
        pending = callback(value)
        if inspect.isawaitable(pending):
            await pending
