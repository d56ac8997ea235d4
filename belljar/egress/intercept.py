"""Requests of a guest, passed on with headers that the guest does not know.

Both sides are parsed and written anew by h11: what the server gets is what was understood here, so no request can hide in
another one. A request is passed on only if it is for the very host that the secret belongs to: a `Host` of somebody else, on a
server that serves both, would carry the secret to somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import h11

from belljar.egress.streams import Stream, at_once, pump

MAX_HEAD_BYTES: Final = 128 * 1024
# TRACE sends a request back with all its headers; CONNECT makes the server a proxy.
FORBIDDEN_METHODS: Final = (b"TRACE", b"CONNECT")


class _Peer:
    """One side: its parser, its stream, and at most one read under way."""

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], stream: Stream) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.stream = stream
        self._reading: asyncio.Task[bytes] | None = None

    def read_ahead(self) -> asyncio.Task[bytes]:
        """The next bytes, which `event` will use; to notice a side that goes away while nothing is expected of it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.stream.read())
        return self._reading

    async def event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type) or event is h11.PAUSED
                return event
            data = await self.read_ahead()
            self._reading = None
            self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            await self.stream.write(data)

    async def rest(self) -> bytes:
        """What came behind the last message that was parsed."""
        rest = bytes(self.http.trailing_data[0])
        if self._reading is not None and self._reading.done():
            rest += self._reading.result()
            self._reading = None
        return rest

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class _Refusal(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


async def intercept(guest: Stream, server: Stream, host: str, port: int, headers: Mapping[str, str]) -> None:
    """Pass requests and answers on, one after the other, until either side is done."""
    down, up = _Peer(h11.SERVER, guest), _Peer(h11.CLIENT, server)
    try:
        while await _exchange(down, up, _authorities(host, port), headers):
            down.http.start_next_cycle()
            up.http.start_next_cycle()
        await guest.end()
        await server.end()
    except _Refusal as refusal:
        await _answer(down, refusal)
    except h11.ProtocolError:
        if down.http.their_state is h11.ERROR:
            await _answer(down, _Refusal(400, "the request is not valid HTTP/1.1"))
        else:
            await _answer(down, _Refusal(502, "the server's answer is not valid HTTP/1.1"))
    finally:
        await down.aclose()
        await up.aclose()


async def _exchange(down: _Peer, up: _Peer, authorities: frozenset[bytes], headers: Mapping[str, str]) -> bool:
    """One request and its answer. False if no other can follow on this connection."""
    request = await _next_request(down, up)
    if request is None:
        return False
    await up.send(_with_headers(request, authorities, headers))
    sending = asyncio.ensure_future(_pass_body(down, up))
    try:
        switched = await _pass_answer(up, down, sending)
        if not sending.done():
            # The server has answered without waiting for all of the request. What is left of it nobody reads.
            return False
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    if switched:
        await _pass_all(down, up)
        return False
    return all(state is h11.DONE for peer in (down, up) for state in (peer.http.our_state, peer.http.their_state))


async def _next_request(down: _Peer, up: _Peer) -> h11.Request | None:
    """The next one, or None when a side has gone."""
    coming = asyncio.ensure_future(down.event())
    try:
        # Bytes of a server that was not asked, or its end: both end the connection.
        await asyncio.wait([coming, up.read_ahead()], return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            return None
        event = coming.result()
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    return event if isinstance(event, h11.Request) else None


def _authorities(host: str, port: int) -> frozenset[bytes]:
    named = {f"{host}:{port}"} | ({host} if port == 443 else set())
    return frozenset(name.encode() for name in named)


def _with_headers(request: h11.Request, authorities: frozenset[bytes], headers: Mapping[str, str]) -> h11.Request:
    if request.method in FORBIDDEN_METHODS:
        raise _Refusal(405, f"{request.method.decode()} is not passed on where the host adds headers")
    if request.http_version not in (b"1.0", b"1.1"):
        raise _Refusal(505, "the request is not HTTP/1.1")
    if not request.target.startswith(b"/") and (request.method, request.target) != (b"OPTIONS", b"*"):
        raise _Refusal(400, "the request must name a path")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise _Refusal(400, "the request has two lengths")  # h11 passes both on, and servers differ in which they believe
    hosts = [value.lower() for name, value in request.headers if name == b"host"]
    if len(hosts) != 1 or hosts[0] not in authorities:
        raise _Refusal(421, "the request is for another host than the connection")
    added = {name.lower().encode(): value.encode() for name, value in headers.items()}
    kept = [(name, value) for name, value in request.headers.raw_items() if name.lower() not in added]
    return h11.Request(method=request.method, target=request.target, headers=[*kept, *added.items()])


async def _pass_body(down: _Peer, up: _Peer) -> None:
    while True:
        event = await down.event()
        if isinstance(event, h11.Data):
            await up.send(h11.Data(data=bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            await up.send(h11.EndOfMessage())  # without trailers, which some servers read as headers
            return
        else:
            raise h11.RemoteProtocolError("the guest went away in the middle of a request")


async def _pass_answer(up: _Peer, down: _Peer, sending: asyncio.Task[None]) -> bool:
    """True if both sides speak another protocol from now on."""
    while True:
        event = await up.event()
        if isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                await sending
            await down.send(event)
            if event.status_code == 101:
                return True
        elif isinstance(event, h11.Response | h11.Data):
            await down.send(event)
        elif isinstance(event, h11.EndOfMessage):
            await down.send(event)
            # A small request is all there by now; give it the chance to say so.
            await asyncio.wait([sending], timeout=0)
            return False
        else:
            raise h11.RemoteProtocolError("the server went away in the middle of an answer")


async def _pass_all(down: _Peer, up: _Peer) -> None:
    """After an upgrade: bytes both ways, whatever they are."""
    for source, sink in ((down, up), (up, down)):
        if rest := await source.rest():
            await sink.stream.write(rest)
    await at_once(_pump_rest(down, up), _pump_rest(up, down))


async def _pump_rest(source: _Peer, sink: _Peer) -> None:
    first = await source.read_ahead()
    source._reading = None
    if first:
        await sink.stream.write(first)
        await pump(source.stream, sink.stream)
    else:
        await sink.stream.end()


async def _answer(down: _Peer, refusal: _Refusal) -> None:
    """Say why, if the guest can still be told, and close."""
    with suppress(h11.LocalProtocolError):
        body = f"belljar: {refusal.reason}\n".encode()
        length = str(len(body)).encode()
        head = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
        await down.send(h11.Response(status_code=refusal.status, headers=head))
        await down.send(h11.Data(data=body))
        await down.send(h11.EndOfMessage())
    await down.stream.end()
