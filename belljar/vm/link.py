"""The host's end of a sandbox's wire: asyncio around `wire.mux`.

A link talks to one agent over one byte stream. It is either in order or lost: `lost` is a future that receives the reason, and
from then on every channel and every call raises that reason. An agent that was restarted in the guest does not lose the link:
its channels fail with AgentLost, and a new session is agreed on by itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from belljar.errors import AgentLost, AgentProtocol, BelljarError, DeadlineExceeded, InvalidInput, SandboxBusy, SandboxGone
from belljar.vm.channel import Channel, Data, Message, fresh
from belljar.vm.sockets import short_path
from belljar.wire.frames import ACK, ANNOUNCE, END, PONG, RESET, Event, WireError
from belljar.wire.mux import HIGH_WATER, Mux

__all__ = ["Channel", "Data", "Link", "Message"]

_READ_SIZE: Final = 256 * 1024
_REPEAT_HELLO_S: Final = 2.0
_RESTART_DEADLINE_S: Final = 15.0
_MAX_ANNOUNCEMENTS: Final = 8  # in a row without an answered HELLO; an honest agent needs one


class Link:
    """One agent's wire. Made by `connect` (waits for the agent) or `dial` (does not: requests may follow at once)."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._mux = Mux(host=True)
        self._channels: dict[int, Channel] = {}
        self._pending = memoryview(b"")
        self._writing = False
        self._drained = asyncio.Event()
        self._pongs: dict[bytes, asyncio.Future[None]] = {}
        self._ready = asyncio.Event()
        self._announced = 0
        self._timer: asyncio.TimerHandle | None = None
        self._hello_until = float("inf")
        self.restarts = 0  # how often the agent was restarted under this link
        self.lost: asyncio.Future[BelljarError] = self._loop.create_future()
        self._loop.add_reader(sock, self._on_readable)
        self._hello()

    # -- making and ending

    @classmethod
    async def dial(cls, path: Path) -> Link:
        """Connect to the machine's socket and say hello, without waiting for an answer. `ready` waits."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            with short_path(path) as short:
                sock.connect(short)
            return cls(sock)
        except BlockingIOError:
            sock.close()
            raise SandboxBusy("the machine's wire has another user already, and more are waiting") from None
        except OSError as error:
            sock.close()
            raise SandboxGone("nobody listens on the machine's wire: the machine has ended") from error

    @classmethod
    async def connect(cls, path: Path, deadline_s: float) -> Link:
        """Connect and agree on a session with the agent."""
        link = await cls.dial(path)
        return await link._ready_or_closed(deadline_s)

    @classmethod
    async def over(cls, sock: socket.socket, deadline_s: float) -> Link:
        """The same over a socket that is connected already; the link owns it from here on."""
        return await cls(sock)._ready_or_closed(deadline_s)

    async def _ready_or_closed(self, deadline_s: float) -> Link:
        try:
            await self.ready(deadline_s)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def ready(self, deadline_s: float) -> None:
        """Wait until the agent has answered our hello."""
        async with self._deadline(deadline_s, "the agent in the guest did not answer the hello"):
            await self._ready.wait()
        if self.lost.done():
            raise fresh(self.lost.result())

    async def aclose(self) -> None:
        self._fail(SandboxGone("the link to the sandbox was closed on this side"))

    def fail(self, error: BelljarError) -> None:
        """End the link for a reason that its owner knows better; everyone who waits on it gets that reason."""
        self._fail(error)

    # -- requests

    async def open(self, op: str, params: dict[str, Any]) -> Channel:
        while self._mux.output_size + len(self._pending) >= HIGH_WATER and not self.lost.done():
            self._drained.clear()
            await self._drained.wait()
        if self.lost.done():
            raise fresh(self.lost.result())
        try:
            number = self._mux.open({**params, "op": op})
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{op}: {error}") from None
        channel = self._channels[number] = Channel(self, number, op)
        self._flush()
        return channel

    async def request(self, op: str, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One question, one answer."""
        async with self._deadline(timeout_s, f"{op}: no answer from the agent in the guest"):
            channel = await self.open(op, params)
            async with channel:
                channel.end()
                answer = await channel.receive()
                if not isinstance(answer, Message) or await channel.receive() is not None:
                    self._fail(AgentProtocol(f"{op}: one message was expected, and something else came"))
                    raise fresh(self.lost.result())
        return answer.body

    async def ping(self, timeout_s: float) -> None:
        """Notice a guest that no longer answers at all."""
        if self.lost.done():
            raise fresh(self.lost.result())
        token = os.urandom(8)
        answered = self._pongs[token] = self._loop.create_future()
        self._mux.ping(token)
        self._flush()
        try:
            async with self._deadline(timeout_s, "the agent in the guest does not answer pings"):
                await answered
        finally:
            del self._pongs[token]
        if self.lost.done():
            raise fresh(self.lost.result())

    @asynccontextmanager
    async def _deadline(self, timeout_s: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s) as scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"{what} within {timeout_s:g} s") from None

    # -- sessions

    def _hello(self) -> None:
        self._pending = memoryview(b"")
        self._mux.hello()
        self._flush()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_REPEAT_HELLO_S, self._on_silence)

    def _on_silence(self) -> None:
        """No ACK yet. A guest that is still booting reads our hello later; one that lost it hears it again."""
        if self._mux.live or self.lost.done():
            return
        if self._loop.time() > self._hello_until:
            self._fail(AgentLost("the agent in the guest was restarted and did not come back"))
            return
        if not self._channels and not self._pending and not self._mux.output_size:
            self._mux.repeat_hello()
            self._flush()
        self._arm()

    def _on_announce(self) -> None:
        self._announced += 1
        if self._announced > _MAX_ANNOUNCEMENTS:
            self._fail(AgentLost("the agent in the guest is restarted over and over"))
            return
        if self._ready.is_set():
            self.restarts += 1
            self._ready.clear()
            self._hello_until = self._loop.time() + _RESTART_DEADLINE_S
        error = AgentLost("the agent in the guest was restarted; what it was doing is lost")
        self._fail_channels(error)
        self._hello()

    # -- input

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(SandboxGone(f"the machine's wire broke: {error.strerror}"))
            return
        if not data:
            self._fail(SandboxGone("the machine closed its wire: it has ended, or another host took it over"))
            return
        try:
            for event in self._mux.receive(data):
                self._dispatch(event)
        except WireError as error:
            self._fail(AgentProtocol(f"the guest sent bytes that no agent sends ({error}); the session was ended"))
            return
        self._flush()

    def _dispatch(self, event: Event) -> None:
        if event.kind == ANNOUNCE:
            self._on_announce()
        elif event.kind == ACK:
            self._announced = 0
            self._hello_until = float("inf")
            self._ready.set()
        elif event.kind == PONG:
            answered = self._pongs.get(event.payload)
            if answered is not None and not answered.done():
                answered.set_result(None)
        elif (channel := self._channels.get(event.channel)) is not None:
            channel._deliver(event)
            if event.kind in (END, RESET):  # not sooner: the mux is ahead of us by the rest of what was read
                self._forget_if_over(event.channel)

    # -- output

    def _flush(self) -> None:
        """Write what there is. The socket is asked first: most of the time it takes everything."""
        while not self._writing and not self.lost.done() and (self._pending or self._mux.has_output):
            if not self._pending:
                self._pending = memoryview(self._mux.take_output())
            try:
                self._pending = self._pending[self._sock.send(self._pending) :]
            except (BlockingIOError, InterruptedError):
                self._writing = True
                self._loop.add_writer(self._sock, self._on_writable)
            except OSError as error:
                self._fail(SandboxGone(f"the machine's wire broke: {error.strerror}"))
        if not self._pending:
            self._drained.set()

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._sock)
        self._writing = False
        self._flush()
        for channel in self._channels.values():
            channel._news.set()

    def _send_data(self, number: int, data: bytes, stream: int) -> int:
        sent = 0
        if not self._writing:
            sent = self._mux.send_data(number, data, stream)
            self._flush()
        return sent

    async def _wait_for_room(self, channel: Channel) -> None:
        """Credit from the guest, or a writable socket: both wake the channel."""
        if self._writing or not self._mux.room(channel._number):
            await channel._wait()

    def _consumed(self, number: int, size: int) -> None:
        self._mux.consumed(number, size)
        if self._mux.has_output:
            self._flush()

    # -- ends

    def _forget_if_over(self, number: int) -> None:
        if not self._mux.is_open(number):
            self._channels.pop(number, None)

    def _drop(self, number: int) -> None:
        self._mux.reset(number, "cancelled", "the host left this channel")
        self._channels.pop(number, None)
        self._flush()

    def _fail_channels(self, error: BelljarError) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel._fail(error)
        for answered in self._pongs.values():
            if not answered.done():
                answered.set_exception(fresh(error))

    def _fail(self, error: BelljarError) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        self._loop.remove_reader(self._sock)
        if self._writing:
            self._loop.remove_writer(self._sock)
        if self._timer is not None:
            self._timer.cancel()
        with suppress(OSError):
            self._sock.close()
        self._ready.set()
        self._drained.set()
        self._fail_channels(error)
