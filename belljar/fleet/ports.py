"""TCP ports of a guest: which of them something listens on, and streams of bytes to one of them."""

from __future__ import annotations

import asyncio
import builtins
import ipaddress
from dataclasses import dataclass

from belljar.errors import AgentProtocol, BelljarError, DeadlineExceeded
from belljar.fleet.answers import Answer
from belljar.fleet.checks import check_whole
from belljar.fleet.process import ANSWER_DEADLINE_S, LinkProvider
from belljar.vm.link import Channel, Data, Message

MAX_PORT = 65535
MAX_NAME_CHARS = 256
CONNECT_DEADLINE_S = 20.0
FROM_GUEST = 1


@dataclass(frozen=True)
class ListeningPort:
    """A TCP port that a program in the guest listens on. Who it is may be unknown."""

    port: int
    address: str
    pid: int | None = None
    process: str | None = None
    user: str | None = None


class Ports:
    """The ports of one sandbox."""

    def __init__(self, links: LinkProvider) -> None:
        self._links = links

    async def list(self) -> builtins.list[ListeningPort]:
        """Everything that listens, by port. One port may be there twice, for IPv4 and IPv6."""
        answer = Answer(await (await self._links()).request("net.ports", {}, ANSWER_DEADLINE_S), "list of ports")
        return sorted((_parse(each) for each in answer.objects("ports")), key=lambda each: (each.port, each.address))

    async def connect(self, port: int) -> PortStream:
        """A new connection to a port of the guest's own 127.0.0.1. PortClosed if nothing listens there."""
        check_whole(port, "port", 1, MAX_PORT)
        link = await self._links()
        try:
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                channel = await link.open("net.connect", {"port": port})
                try:
                    answer = await channel.receive()
                    if not isinstance(answer, Message) or not Answer(answer.body, "answer to connect").flag("connected"):
                        raise AgentProtocol("the guest did not answer a connect with a connection")
                except BaseException:
                    await channel.aclose()
                    raise
        except TimeoutError:
            raise DeadlineExceeded(f"port {port} of the guest did not take a connection within {CONNECT_DEADLINE_S:g} s") from None
        return PortStream(port, channel)


class PortStream:
    """One connection to a port of a guest. One reader and one writer at a time; `async with` closes it on the way out.

    Both directions have back-pressure: a guest that does not read makes `write` wait, and what nobody reads here stays there.
    """

    def __init__(self, port: int, channel: Channel) -> None:
        self.port = port
        self._channel = channel
        self._rest = b""
        self._ended = False

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Some bytes, as they come; none at the end. A connection that breaks raises instead."""
        while not self._rest and not self._ended:
            event = await self._channel.receive()
            if event is None:
                self._ended = True
            elif not isinstance(event, Data) or event.stream != FROM_GUEST:
                raise AgentProtocol(f"the guest sent something else than bytes on a connection to its port {self.port}")
            else:
                self._rest = event.data
        taken, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return taken

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """All of `data`; waits while the guest takes none."""
        await self._channel.send(data)

    async def write_eof(self) -> None:
        """Nothing more will be written; reading goes on."""
        self._channel.end()

    def cut(self, problem: BelljarError) -> None:
        """End it from outside: whoever reads or writes here gets `problem`, and the guest's program sees a reset."""
        self._rest = b""
        self._channel.cut(problem)

    async def aclose(self) -> None:
        """Give the connection up. If it had not ended in both directions, the guest's program sees it reset."""
        await self._channel.aclose()

    async def __aenter__(self) -> PortStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _parse(answer: Answer) -> ListeningPort:
    address = answer.text("address", max_chars=64)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise AgentProtocol("the guest's list of ports has an address that is none") from None
    return ListeningPort(
        port=answer.whole("port", 1, MAX_PORT),
        address=address,
        pid=answer.optional_whole("pid", 1, 2**31 - 1),
        process=answer.text("process", max_chars=MAX_NAME_CHARS) if "process" in answer else None,
        user=answer.text("user", max_chars=MAX_NAME_CHARS) if "user" in answer else None,
    )
