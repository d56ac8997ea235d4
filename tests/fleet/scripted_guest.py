"""A small guest over a socketpair that speaks the real wire and answers as a test tells it to, lies included."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from belljar.vm.link import Link
from belljar.wire.frames import CREDIT, DATA, END, MESSAGE, OPEN, RESET, Event
from belljar.wire.mux import Mux

Script = Callable[["GuestChannel"], Awaitable[None]]


class GuestChannel:
    """The guest's end of one channel."""

    def __init__(self, guest: ScriptedGuest, number: int, request: dict[str, Any]) -> None:
        self._guest = guest
        self._number = number
        self.request = request
        self.news = asyncio.Event()
        self.received = bytearray()
        self.messages: list[dict[str, Any]] = []
        self.ended = asyncio.Event()
        self.was_reset = asyncio.Event()

    async def data(self, data: bytes, stream: int = 1) -> None:
        sent = 0
        while sent < len(data):
            sent += self._guest.mux.send_data(self._number, data[sent:], stream)
            self._guest.flush()
            if sent < len(data):
                self.news.clear()
                await self.news.wait()

    def message(self, body: dict[str, Any]) -> None:
        self._guest.mux.send_message(self._number, body)
        self._guest.flush()

    def end(self) -> None:
        self._guest.mux.send_end(self._number)
        self._guest.flush()

    def reset(self, code: str, message: str) -> None:
        self._guest.mux.reset(self._number, code, message)
        self._guest.flush()

    def deliver(self, event: Event) -> None:
        if event.kind == DATA:
            self.received += event.payload
        elif event.kind == MESSAGE:
            self.messages.append(json.loads(event.payload))
        if event.kind in (DATA, MESSAGE):
            self._guest.mux.consumed(self._number, len(event.payload))
            self._guest.flush()
        elif event.kind == END:
            self.ended.set()
        elif event.kind == RESET:
            self.was_reset.set()
        elif event.kind == CREDIT:
            pass
        self.news.set()


class ScriptedGuest:
    """`script[op]` is run for every channel that asks for `op`; `requests` keeps what was asked."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self._sock = ours
        self.mux = Mux(host=False)
        self.script: dict[str, Script] = {}
        self.requests: list[dict[str, Any]] = []
        self.channels: dict[int, GuestChannel] = {}
        self.asked = asyncio.Event()
        self._pending = b""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Link:
        asyncio.get_running_loop().add_reader(self._sock, self._on_readable)
        return await Link.over(self._theirs, 30)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        asyncio.get_running_loop().remove_writer(self._sock)
        self._sock.close()
        for task in self._tasks:
            task.cancel()

    def flush(self) -> None:
        self._pending += self.mux.take_output()
        try:
            while self._pending:
                self._pending = self._pending[self._sock.send(self._pending) :]
            asyncio.get_running_loop().remove_writer(self._sock)
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._sock, self._on_writable)
        except OSError:
            pass  # the host hung up

    def _on_writable(self) -> None:
        self.flush()
        for channel in self.channels.values():
            channel.news.set()

    def _on_readable(self) -> None:
        data = self._sock.recv(1 << 20)
        if not data:
            asyncio.get_running_loop().remove_reader(self._sock)
            return
        for event in self.mux.receive(data):
            if event.kind == OPEN:
                request = json.loads(event.payload)
                self.requests.append(request)
                self.asked.set()
                channel = self.channels[event.channel] = GuestChannel(self, event.channel, request)
                task = asyncio.get_running_loop().create_task(self._play(channel))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif event.channel in self.channels:
                self.channels[event.channel].deliver(event)
        self.flush()

    async def _play(self, channel: GuestChannel) -> None:
        script = self.script.get(channel.request["op"])
        if script is None:
            channel.reset("not_supported", f"no script for {channel.request['op']}")
        else:
            await script(channel)


def answers(*bodies: dict[str, Any]) -> Script:
    """A script that sends these messages and ends."""

    async def play(channel: GuestChannel) -> None:
        for body in bodies:
            channel.message(body)
        channel.end()

    return play
