"""The agent's end of the network, over the real wire and without a machine: asks, and takes what the host opens."""

from __future__ import annotations

import asyncio
from typing import Any

from belljar.vm.link import Link
from tests.fleet.scripted_guest import GuestChannel, ScriptedGuest

DEADLINE_S = 30


class Connected:
    """One connection, as the program in the guest sees it."""

    def __init__(self, channel: GuestChannel) -> None:
        self.channel = channel

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.channel.data(data)

    async def read(self, count: int) -> bytes:
        """Exactly so many bytes, or what came before the end."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.channel.received) < count and not self.over:
                self.channel.news.clear()
                await self.channel.news.wait()
        taken = bytes(self.channel.received[:count])
        del self.channel.received[:count]
        return taken

    async def read_all(self) -> bytes:
        return await self.read(1 << 40)

    @property
    def over(self) -> bool:
        return self.channel.ended.is_set() or self.channel.was_reset.is_set()

    async def until_reset(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.channel.was_reset.wait()

    def end(self) -> None:
        self.channel.end()


class NetGuest:
    """`connect` and `resolve` ask as the agent does."""

    def __init__(self) -> None:
        self.scripted = ScriptedGuest()
        self.scripted.script = {"net.serve": self._on_serve, "net.accept": self._on_accept}
        self.serving = asyncio.Event()
        self.channel: GuestChannel | None = None
        self._accepted: dict[int, GuestChannel] = {}
        self._news = asyncio.Event()
        self._number = 0
        self._stopped = False

    async def start(self) -> Link:
        return await self.scripted.start()

    def stop(self) -> None:
        """May be done twice: the end of the machine, and that of the test."""
        if not self._stopped:
            self._stopped = True
            self.scripted.stop()

    async def _on_serve(self, channel: GuestChannel) -> None:
        self.channel = channel
        self.serving.set()

    async def _on_accept(self, channel: GuestChannel) -> None:
        self._accepted[channel.request["ask"]] = channel
        assert self.channel is not None
        self.channel.news.set()

    def say(self, body: dict[str, Any]) -> None:
        assert self.channel is not None
        self.channel.message(body)

    def ask(self, **body: Any) -> int:
        self._number += 1
        self.say({"ask": self._number, **body})
        return self._number

    async def outcome(self, number: int) -> Connected | dict[str, Any]:
        assert self.channel is not None
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for answer in self.channel.messages:
                    if answer["ask"] == number:
                        return answer
                if number in self._accepted:
                    return Connected(self._accepted[number])
                self.channel.news.clear()
                await self.channel.news.wait()

    async def resolve(self, name: str) -> dict[str, Any]:
        answer = await self.outcome(self.ask(kind="resolve", name=name, type="A"))
        assert isinstance(answer, dict)
        return answer

    async def connect(self, name: str | None, port: int, address: str = "198.18.0.1") -> Connected | dict[str, Any]:
        return await self.outcome(self.ask(kind="connect", name=name, address=address, port=port))

    async def connected(self, name: str | None, port: int, address: str = "198.18.0.1") -> Connected:
        outcome = await self.connect(name, port, address)
        assert isinstance(outcome, Connected), outcome
        return outcome

    async def refused(self, name: str | None, port: int, address: str = "198.18.0.1") -> dict[str, Any]:
        outcome = await self.connect(name, port, address)
        assert isinstance(outcome, dict), "it was connected"
        return outcome
