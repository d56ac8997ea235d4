"""One session's asks, judged and carried out.

A guest only asks. For each ask the host decides, and a connection that it agrees to is made first, and opened towards the guest
then: `net.serve` carries asks and refusals, `net.accept` one connection each. A refusal is decided at once and in the reader
itself; only what must wait for a name server or another host gets a task, and those are counted. A guest that asks faster
than it reads the answers is not read any further, so nothing piles up here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import Any

from belljar.egress.addresses import parse_address
from belljar.egress.asks import Connect, Drop, Malformed, Resolve, parse_ask
from belljar.egress.dialing import NoWay, connect, denied, find_addresses
from belljar.egress.intercept import intercept
from belljar.egress.log import Connection
from belljar.egress.names import parse_name
from belljar.egress.outlet import SERVER_RULE, Outlet
from belljar.egress.policy import Address
from belljar.egress.relay import Relay
from belljar.egress.streams import Channel, ChannelStream, Link, SocketStream
from belljar.egress.tls import TlsStream
from belljar.errors import AgentLost, BelljarError, InvalidInput

log = logging.getLogger(__name__)

MAX_ASKS = 256
LOOK_FOR_IDLE_S = 60.0
# A guest that ends the channel over and over is listened to again this much later.
AGAIN_S = 1.0
HANDSHAKE_S = 20.0
LINGER_S = 30.0


class Gateway:
    """Serves one link until it is lost. What is open then is closed."""

    def __init__(self, link: Link, outlet: Outlet) -> None:
        self._link = link
        self._outlet = outlet
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._relaying: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Raises what the link is lost with. Returns if the agent in the guest is too old to have a network."""
        idle = asyncio.create_task(self._end_idle())
        try:
            while True:
                channel = await self._link.open("net.serve", {})
                try:
                    await self._listen(channel)
                    await asyncio.sleep(AGAIN_S)
                except InvalidInput:
                    return
                except AgentLost:
                    pass  # a new agent, which knows nothing of what was asked before
                except BelljarError:
                    await asyncio.sleep(AGAIN_S)
                finally:
                    await channel.aclose()
                    await self._end_tasks()
        finally:
            idle.cancel()
            await asyncio.gather(idle, return_exceptions=True)

    async def _listen(self, channel: Channel) -> None:
        while (item := await channel.receive()) is not None:
            body = getattr(item, "body", None)
            if body is not None:
                await self._take(channel, body)

    # -- asks ---------------------------------------------------------------------------------------------------------------

    async def _take(self, channel: Channel, body: dict[str, Any]) -> None:
        ask = parse_ask(body)
        if isinstance(ask, Drop):
            if task := self._asking.get(ask.number):
                task.cancel()
        elif isinstance(ask, Malformed):
            await _answer(channel, ask.number, "failed", ask.reason)
        elif ask is None or ask.number in self._asking:
            return
        elif len(self._asking) >= MAX_ASKS:
            await _answer(channel, ask.number, "refused", f"more than {MAX_ASKS} connections are being asked for at once")
        elif isinstance(ask, Resolve):
            await self._take_resolve(channel, ask)
        else:
            await self._take_connect(channel, ask)

    async def _take_resolve(self, channel: Channel, ask: Resolve) -> None:
        line = Connection("resolve", _shown(ask.name), None, None, "refused", "", "")
        try:
            name = line.name = _check_name(ask.name)
            decision = self._outlet.policy.judge_name(name)
            if not decision.allowed:
                raise denied(decision)
            self._check_room()
        except NoWay as problem:
            await self._refuse(channel, ask.number, line, problem)
            return
        self._start(ask.number, self._resolve(channel, ask.number, name, line))

    async def _take_connect(self, channel: Channel, ask: Connect) -> None:
        line = Connection("connect", _shown(ask.name) if ask.name is not None else None, None, ask.port, "refused", "", "")
        try:
            name = line.name = _check_name(ask.name) if ask.name is not None else None
            address = _check_address(ask.address)
            line.address = str(address) if name is None else None
            decision = self._outlet.judge(name, address, ask.port)
            if not decision.allowed:
                raise denied(decision)
            if name is None and (barrier := self._outlet.find_barrier(address, ask.port)):
                raise denied(barrier)
            if limit := self._outlet.usage.find_refusal():
                raise NoWay("refused", *limit, denied=True)
            self._check_room()
        except NoWay as problem:
            await self._refuse(channel, ask.number, line, problem)
            return
        line.rule = decision.rule
        self._outlet.usage.connections += 1
        self._start(ask.number, self._connect(channel, ask, name, address, line), self._release)

    def _check_room(self) -> None:
        if not self._outlet.ground.room.has_room_for(len(self._asking) + len(self._relaying)):
            reason = "this server has nearly as many connections open for its sandboxes as it can, and this one has its share"
            raise NoWay("refused", SERVER_RULE, reason, denied=True)

    def _start(self, number: int, work: Any, release: Any = None) -> None:
        self._outlet.ground.room.used += 1  # one socket at a time, for a question or for the connection
        task = self._asking[number] = asyncio.create_task(work, name=f"ask {number}")

        def over(done: asyncio.Task[None]) -> None:
            if self._asking.get(number) is done:
                del self._asking[number]
            self._relaying.discard(done)
            self._outlet.ground.room.used -= 1
            if release is not None:
                release()
            if not done.cancelled() and (problem := done.exception()) and not isinstance(problem, BelljarError):
                log.error("a connection of a sandbox failed in an unforeseen way", exc_info=problem)

        task.add_done_callback(over)

    def _release(self) -> None:
        self._outlet.usage.connections -= 1

    async def _resolve(self, channel: Channel, number: int, name: str, line: Connection) -> None:
        try:
            resolved, _ = await find_addresses(self._outlet, name, None)
        except NoWay as problem:
            await self._refuse(channel, number, line, problem)
            return
        self._outlet.log.counters.resolved += 1
        await channel.message({"ask": number, "verdict": "resolved", "ttl": resolved.ttl_s})

    async def _refuse(self, channel: Channel, number: int, line: Connection, problem: NoWay) -> None:
        """Written down first, so that whoever is told can look it up."""
        line.verdict, line.reason, line.rule = problem.verdict, problem.reason, problem.rule
        (self._outlet.log.refuse if problem.denied else self._outlet.log.fail)(line)
        await _answer(channel, number, problem.verdict, problem.reason)

    # -- connections --------------------------------------------------------------------------------------------------------

    async def _connect(self, channel: Channel, ask: Connect, name: str | None, address: Address, line: Connection) -> None:
        outlet = self._outlet
        server: SocketStream | None = None
        try:
            names: tuple[str, ...] = ()
            permitted = [address]
            if name is not None:
                resolved, permitted = await find_addresses(outlet, name, ask.port)
                names = resolved.names
            sock, reached = await connect(permitted, ask.port)
            line.address = str(reached)
            server = SocketStream(sock, outlet.usage, outlet.log, line)
            secret = outlet.secrets.headers(name, ask.port) if name is not None else {}
            tls = await self._greet(server, names[0]) if secret else None
            if refusal := outlet.find_refusal(names, reached, ask.port):  # the policy may have changed meanwhile
                raise denied(refusal)
            guest = ChannelStream(await self._accept(ask.number))
        except NoWay as problem:
            if server is not None:
                await server.abort()
            await self._refuse(channel, ask.number, line, problem)
            return
        except BaseException:
            if server is not None:
                await server.abort()
            raise
        if task := self._asking.pop(ask.number, None):
            self._relaying.add(task)
        line.verdict, line.reason = "allowed", ""
        outlet.log.begin(line)
        relay = Relay(guest, server, line, reached, names)
        outlet.open.add(relay)
        reason = "the sandbox was let go of"
        try:
            if late := outlet.find_refusal(names, reached, ask.port):
                reason = f"the policy was changed: {late.reason}"
                return
            reason = await relay.run((lambda: self._intercept(relay, tls, ask.port)) if tls is not None else None)
        finally:
            await guest.abort()
            await server.abort()
            outlet.open.discard(relay)
            outlet.log.end(line, reason)
            outlet.cut_if_spent()

    async def _accept(self, number: int) -> Channel:
        try:
            channel: Channel = await self._link.open("net.accept", {"ask": number})
        except InvalidInput:
            raise NoWay("failed", SERVER_RULE, "the wire has no room for another connection", denied=False) from None
        return channel

    async def _greet(self, server: SocketStream, host: str) -> TlsStream:
        """TLS with the server itself, verified, before the guest hears of it."""
        context = await asyncio.to_thread(self._outlet.ground.client_tls)
        stream = TlsStream(server, context, host=host, server_side=False)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await stream.handshake()
        except TimeoutError:
            raise NoWay("timeout", SERVER_RULE, "the server did not finish the TLS handshake", denied=False) from None
        except ssl.SSLCertVerificationError as problem:
            reason = f"the server's certificate is not valid for {host}: {problem.verify_message}"
            raise NoWay("failed", SERVER_RULE, reason, denied=False) from None
        except OSError as problem:
            raise NoWay("failed", SERVER_RULE, f"TLS with the server failed: {type(problem).__name__}", denied=False) from None
        return stream

    async def _intercept(self, relay: Relay, server: TlsStream, port: int) -> None:
        outlet, host = self._outlet, relay.names[0]
        headers = outlet.secrets.headers(host, port)
        if outlet.authority is None or not headers:
            raise ConnectionAbortedError("the secret was removed")
        guest = TlsStream(relay.guest, outlet.authority.server_context(host), host=host, server_side=True)
        async with asyncio.timeout(HANDSHAKE_S):
            await guest.handshake()
        await intercept(guest, server, host, port, headers)
        # A reset now would overtake what the program has not read yet. It closes its own side when it has.
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await relay.guest.read():
                    pass

    # -- ends ---------------------------------------------------------------------------------------------------------------

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_FOR_IDLE_S)
            for relay in list(self._outlet.open):
                if isinstance(relay, Relay) and relay.is_idle():
                    relay.cut("nothing was sent for a long time")

    async def _end_tasks(self) -> None:
        tasks = [*self._asking.values(), *self._relaying]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(channel: Channel, number: int, verdict: str, reason: str) -> None:
    with suppress(AgentLost):
        await channel.message({"ask": number, "verdict": verdict, "reason": reason})


def _check_name(text: str) -> str:
    """A guest's name in its one form. What a program asks DNS for is ASCII already."""
    try:
        if not text.isascii():
            raise ValueError("it is not ASCII")
        return parse_name(text)
    except ValueError as problem:
        raise NoWay("refused", SERVER_RULE, f"that is no host name: {problem}", denied=True) from None


def _shown(name: str) -> str:
    """For the log, which people read in terminals: what no name has in it is written out."""
    return name if name.isascii() and name.isprintable() else ascii(name)[1:-1]


def _check_address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError:
        raise NoWay("refused", SERVER_RULE, "that is no address", denied=True) from None
