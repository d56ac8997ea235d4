"""A real DNS server on loopback, over UDP and TCP, whose answers a test writes down."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

Answer = list[tuple[str, str]]  # type and value: ("A", "1.2.3.4"), ("CNAME", "other.test")


class DnsServer:
    """`names` maps a name to its records, to a function that makes them, or to an rcode; all else does not exist."""

    def __init__(self) -> None:
        self.names: dict[str, Answer | Callable[[], Answer] | str] = {}
        self.asked: list[tuple[str, str, str]] = []  # name, type, transport
        self.ttl = 60
        self.silent = False
        self.truncate = False
        self._closers: list[Callable[[], None]] = []

    async def start(self) -> DnsServer:
        loop = asyncio.get_running_loop()
        tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", 0)
        self.port: int = tcp.sockets[0].getsockname()[1]
        transport, _ = await loop.create_datagram_endpoint(lambda: _Udp(self), local_addr=("127.0.0.1", self.port))
        self._closers += [tcp.close, transport.close]
        return self

    def stop(self) -> None:
        for close in self._closers:
            close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, raw: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(raw)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind, transport))
        if self.silent:
            return None
        reply = dns.message.make_response(query)
        if self.truncate and transport == "udp":
            reply.flags |= dns.flags.TC
            return reply.to_wire()
        self._fill(reply, question.name.to_text(), kind)
        return reply.to_wire()

    def _fill(self, reply: dns.message.Message, name: str, kind: str) -> None:
        known = self.names.get(name.rstrip(".").lower())
        if known is None or isinstance(known, str):
            reply.set_rcode(dns.rcode.from_text(known or "NXDOMAIN"))
            return
        for record_kind, value in known() if callable(known) else known:
            if record_kind == "CNAME":
                reply.answer.append(dns.rrset.from_text(name, self.ttl, "IN", "CNAME", f"{value}."))
                self._fill(reply, f"{value}.", kind)
            elif record_kind == kind:
                reply.answer.append(dns.rrset.from_text(name, self.ttl, "IN", kind, value))

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">H", await reader.readexactly(2))
                answer = self.answer(await reader.readexactly(size), "tcp")
                if answer is not None:
                    writer.write(struct.pack(">H", len(answer)) + answer)
        except asyncio.IncompleteReadError:
            writer.close()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if (answer := self._server.answer(data, "udp")) is not None:
            self._transport.sendto(answer, addr)  # type: ignore[attr-defined]
