"""First packets of connections, held by the kernel (nfnetlink_queue) until the agent has a verdict on them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from belljar.guest.net import netlink, rules

_QUEUE: Final = 3
_PACKET, _VERDICT, _CONFIG = 0, 1, 2
_BIND: Final = 1
_COPY_PACKET: Final = 2
_COPIED: Final = 68  # of a packet: the longest IP header, and 8 bytes of what follows
_MAX_HELD: Final = 1024
_DROP, _ACCEPT = 0, 1
_SO_RCVBUFFORCE: Final = 33
_RECEIVE_BUFFER: Final = 2 * 1024 * 1024
_SOL_NETLINK, _NO_ENOBUFS = 270, 5
_AT_ONCE: Final = 16
_SOL_RAW, _ICMP_FILTER = 255, 1
_NOTHING: Final = struct.pack("=I", 0xFFFFFFFF)  # is received

Endpoint = tuple[str, int]


class Syn(NamedTuple):
    """A program wants to connect from `source` to `target`. `number` names the packet to the kernel; `start` is its beginning."""

    number: int
    source: Endpoint
    target: Endpoint
    start: bytes


class SynQueue:
    """What is not judged when this ends is dropped by the kernel, and sent again by the program's side a second later."""

    def __init__(self, on_syn: Callable[[Syn], None]) -> None:
        self._on_syn = on_syn
        self._icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._icmp.setsockopt(_SOL_RAW, _ICMP_FILTER, _NOTHING)
        self._sock = netlink.open_netlink(netlink.NETFILTER)
        self._sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        self._sock.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)  # a flood loses packets, which are sent again
        for config in (
            netlink.attribute(1, struct.pack(">BxH", _BIND, socket.AF_INET)),
            netlink.attribute(2, struct.pack(">IB", _COPIED, _COPY_PACKET)),
            netlink.number(3, _MAX_HELD),
        ):
            netlink.send_acknowledged(self._sock, self._message(_CONFIG, config, netlink.ACK))
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._on_readable)

    def accept(self, syn: Syn) -> None:
        self._judge(syn, _ACCEPT, 0)

    def drop(self, syn: Syn) -> None:
        self._judge(syn, _DROP, 0)

    def refuse(self, syn: Syn) -> None:
        """connect() fails with ECONNREFUSED."""
        self._judge(syn, _ACCEPT, rules.REFUSED)

    def unreachable(self, syn: Syn) -> None:
        """connect() fails with EHOSTUNREACH. The kernel would send the ICMP message from the target, which it finds impossible."""
        with suppress(OSError):
            self._icmp.sendto(render_unreachable(syn.start), (syn.source[0], 0))
        self._judge(syn, _DROP, 0)

    def _judge(self, syn: Syn, verdict: int, mark: int) -> None:
        attributes = netlink.attribute(2, struct.pack(">II", verdict, syn.number))
        if mark:
            attributes += netlink.number(3, mark)
        with suppress(OSError):  # the kernel is out of memory; the packet stays where it is until the agent ends
            self._sock.send(self._message(_VERDICT, attributes))

    @staticmethod
    def _message(kind: int, attributes: bytes, flags: int = 0) -> bytes:
        return netlink.netfilter(_QUEUE, kind, socket.AF_UNSPEC, attributes, flags=flags, resource=rules.QUEUE)

    def _on_readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data = self._sock.recv(65536)
            except OSError:
                return
            for kind, body in netlink.parse_messages(data):
                if kind == _QUEUE << 8 | _PACKET and (syn := parse_packet(body)) is not None:
                    self._on_syn(syn)


def parse_packet(body: bytes) -> Syn | None:
    found = netlink.parse_attributes(body[4:])
    header, packet = found.get(1, b""), found.get(10, b"")
    length = (packet[0] & 0xF) * 4 if packet else 0
    if len(header) < 4 or not 20 <= length <= len(packet) - 8:
        return None
    (number,) = struct.unpack_from(">I", header)
    source_port, target_port = struct.unpack_from(">HH", packet, length)
    source, target = (socket.inet_ntoa(packet[12:16]), source_port), (socket.inet_ntoa(packet[16:20]), target_port)
    return Syn(number, source, target, packet[: length + 8])


def render_unreachable(start: bytes) -> bytes:
    """ICMP "host unreachable" about a packet of which this is the header and the first 8 bytes."""
    body = struct.pack(">BBHI", 3, 1, 0, 0) + start
    total = sum(struct.unpack(f">{len(body) // 2}H", body))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">BBHI", 3, 1, ~(total + (total >> 16)) & 0xFFFF, 0) + start
