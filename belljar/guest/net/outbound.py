"""Connections that programs of the guest make.

    SYN          held in the kernel's queue; the host is asked, by name if the address stands for one
    net.accept   the host has connected: the packet goes on, comes out at our listener, and a relay joins the two
    a refusal    the packet is answered so that connect() fails
    a time-out   the packet is dropped, and so is every other one of that connection: the program's own kernel counts its tries,
                 and connect() fails with ETIMEDOUT when there were enough. No answer on the wire would make it say so

A packet that is sent again while the first one waits is dropped. What arrives at the listener without such a history is
somebody's connection to our port, and is reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

from belljar.guest.channel import Channel
from belljar.guest.failure import Failure
from belljar.guest.net.asks import Asks, Verdict
from belljar.guest.net.names import Names
from belljar.guest.net.relay import Relay, reset_socket
from belljar.guest.net.synqueue import Endpoint, Syn, SynQueue
from belljar.guest.params import Params

MAX_CONNECTIONS: Final = 512
DNS_PORT: Final = 53

_ARRIVAL_S: Final = 5.0  # from the verdict to the listener; the program may be gone
_SILENCE_S: Final = 35.0  # after a time-out: longer than the kernel tries (setup.py)
_AT_ONCE: Final = 16
_SO_ORIGINAL_DST: Final = 80
_ADDRESS: Final = struct.Struct(">HH4s8x")

Flow = tuple[Endpoint, Endpoint]


class _Granted:
    """The host is connected; the program's side is about to arrive."""

    __slots__ = ("channel", "flow", "timer")

    def __init__(self, channel: Channel, flow: Flow, timer: asyncio.TimerHandle) -> None:
        self.channel = channel
        self.flow = flow
        self.timer = timer


class Outbound:
    def __init__(self, asks: Asks, names: Names, listener: socket.socket, on_dns: Callable[[socket.socket], None]) -> None:
        self._asks = asks
        self._names = names
        self._listener = listener
        self._on_dns = on_dns
        self._loop = asyncio.get_running_loop()
        self._queue = SynQueue(self._on_syn)
        self._flows: dict[Flow, int] = {}  # the number of the ask; from the first packet to the end of the relay
        self._asked: dict[int, Syn] = {}
        self._granted: dict[Flow, _Granted] = {}
        self._silenced: set[Flow] = set()
        self._loop.add_reader(listener, self._on_arrivals)

    # -- the first packet

    def _on_syn(self, syn: Syn) -> None:
        flow = (syn.source, syn.target)
        address, port = syn.target
        if flow in self._flows or flow in self._silenced:
            self._queue.drop(syn)
            return
        if port == DNS_PORT:
            self._queue.accept(syn)
            return
        name = self._names.find_name(address)
        if len(self._flows) >= MAX_CONNECTIONS or (name is None and self._names.covers(address)):
            self._queue.refuse(syn)
            return
        body = {"kind": "connect", "name": name, "address": address, "port": port}
        number = self._asks.ask(body, lambda verdict: self._on_refusal(syn, verdict))
        if number is None:
            self._queue.refuse(syn)
            return
        self._asked[number] = syn
        self._flows[flow] = number

    def _on_refusal(self, syn: Syn, verdict: Verdict) -> None:
        flow = (syn.source, syn.target)
        del self._asked[self._flows.pop(flow)]
        if verdict.kind == "unreachable":
            self._queue.unreachable(syn)
        elif verdict.kind == "timeout" and len(self._silenced) < MAX_CONNECTIONS:
            self._silenced.add(flow)
            self._loop.call_later(_SILENCE_S, self._silenced.discard, flow)
            self._queue.drop(syn)
        else:
            self._queue.refuse(syn)

    # -- the host has connected

    def accept(self, channel: Channel, params: Params) -> None:
        """net.accept"""
        number = params.integer("ask", 0, 0, 1 << 62)
        syn = self._asked.pop(number, None)
        if syn is None or not self._asks.take(number):
            raise Failure("not_found", f"nobody waits for connection {number} any more")
        flow = (syn.source, syn.target)
        granted = _Granted(channel, flow, self._loop.call_later(_ARRIVAL_S, self._on_absence, flow))
        self._granted[flow] = granted
        channel.on_left = lambda by_host: self._on_host_left(flow)
        self._queue.accept(syn)

    def _withdraw(self, flow: Flow) -> _Granted | None:
        granted = self._granted.pop(flow, None)
        if granted is not None:
            granted.timer.cancel()
        return granted

    def _on_host_left(self, flow: Flow) -> None:
        if self._withdraw(flow) is not None:  # what arrives at the listener is reset then
            del self._flows[flow]

    def _on_absence(self, flow: Flow) -> None:
        granted = self._withdraw(flow)
        if granted is not None:
            del self._flows[flow]
            granted.channel.disconnect()
            granted.channel.fail(Failure("connection_reset", "the program has given up on this connection"))

    # -- at the listener

    def _on_arrivals(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, source = self._listener.accept()
            except OSError:  # none left, or it was reset already, or we are out of descriptors
                return
            self._on_arrival(sock, source)

    def _on_arrival(self, sock: socket.socket, source: Endpoint) -> None:
        try:
            _, port, address = _ADDRESS.unpack(sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, _ADDRESS.size))
        except OSError:
            reset_socket(sock)
            return
        target = (socket.inet_ntoa(address), port)
        if port == DNS_PORT:
            self._on_dns(sock)
            return
        flow = self._find_granted(source, target)
        granted = self._withdraw(flow) if flow is not None else None
        if granted is None:
            reset_socket(sock)
            return
        granted.channel.disconnect()
        Relay(granted.channel, sock, lambda: self._forget(granted.flow))

    def _forget(self, flow: Flow) -> None:
        del self._flows[flow]

    def _find_granted(self, source: Endpoint, target: Endpoint) -> Flow | None:
        """The redirection may have given a connection another source port; those to one target are as good as each other then."""
        if (source, target) in self._granted:
            return source, target
        return next((flow for flow in self._granted if flow[1] == target), None)
