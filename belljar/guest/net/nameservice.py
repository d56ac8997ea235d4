"""The guest's name service: UDP and TCP questions, answered from what the host says and with addresses of our own.

IPv6 addresses do not exist here, and neither do records of other kinds: such questions get an empty answer at once, so that
programs that ask for both do not wait. A name that the host refuses does not exist either: programs take that answer as final.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from belljar.guest.net import dns
from belljar.guest.net.asks import Asks, Verdict
from belljar.guest.net.names import Names
from belljar.guest.net.relay import reset_socket

MAX_STREAMS: Final = 32

_AT_ONCE: Final = 32
_LARGEST: Final = 4096
_STREAM_IDLE_S: Final = 10.0
_FIXED_TTL: Final = 60
_LOOPBACK: Final = socket.inet_aton("127.0.0.1")

Reply = Callable[[bytes], None]


class NameService:
    def __init__(self, asks: Asks, names: Names, datagrams: socket.socket) -> None:
        self._asks = asks
        self._names = names
        self._datagrams = datagrams
        self._streams: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(datagrams, self._on_datagrams)

    # -- transports

    def _on_datagrams(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, sender = self._datagrams.recvfrom(_LARGEST)
            except OSError:
                return
            self._answer(data, lambda answer, sender=sender: self._send(answer, sender))  # type: ignore[misc]

    def _send(self, answer: bytes, sender: tuple[str, int]) -> None:
        with suppress(OSError):  # a full buffer: UDP may lose it
            self._datagrams.sendto(answer, sender)

    def serve_stream(self, sock: socket.socket) -> None:
        """Questions over TCP, one after the other."""
        if len(self._streams) >= MAX_STREAMS:
            reset_socket(sock)
            return
        task = self._loop.create_task(self._run_stream(sock))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    async def _run_stream(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with sock, suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            while True:
                async with asyncio.timeout(_STREAM_IDLE_S):
                    (length,) = struct.unpack(">H", await self._receive(sock, 2))
                    question = await self._receive(sock, length)
                answered: asyncio.Future[bytes] = self._loop.create_future()
                self._answer(question, lambda answer, future=answered: future.done() or future.set_result(answer))  # type: ignore[misc]
                async with asyncio.timeout(_STREAM_IDLE_S):
                    answer = await answered
                    await self._loop.sock_sendall(sock, struct.pack(">H", len(answer)) + answer)

    async def _receive(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(sock, size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    # -- answers

    def _answer(self, data: bytes, reply: Reply) -> None:
        try:
            question = dns.parse_question(data)
        except dns.Malformed as problem:
            if problem.number is not None:
                reply(dns.answer_malformed(problem.number))
            return
        if not dns.is_query(question):
            reply(dns.answer_code(question, dns.NOT_IMPLEMENTED))
        elif not question.name:
            reply(dns.answer_code(question, dns.NO_SUCH_NAME))
        elif question.kind == dns.PTR:
            reply(self._answer_reverse(question))
        elif question.kind != dns.A:
            reply(dns.answer_code(question, dns.OK))
        elif question.name == "localhost" or question.name.endswith(".localhost"):
            reply(dns.answer_a(question, _LOOPBACK, _FIXED_TTL))
        else:
            self._ask(question, reply)

    def _answer_reverse(self, question: dns.Question) -> bytes:
        address = dns.reversed_address(question.name)
        name = self._names.find_name(address) if address is not None else None
        if name is None:
            return dns.answer_code(question, dns.NO_SUCH_NAME)
        return dns.answer_ptr(question, name, _FIXED_TTL)

    def _ask(self, question: dns.Question, reply: Reply) -> None:
        body = {"kind": "resolve", "name": question.name, "type": "A"}
        if self._asks.ask(body, lambda verdict: reply(self._conclude(question, verdict))) is None:
            reply(dns.answer_code(question, dns.FAILED, "too many questions are waiting"))

    def _conclude(self, question: dns.Question, verdict: Verdict) -> bytes:
        if verdict.kind == "resolved":
            return dns.answer_a(question, socket.inet_aton(self._names.address_of(question.name)), verdict.ttl)
        code = dns.NO_SUCH_NAME if verdict.kind in ("nxdomain", "refused") else dns.FAILED
        return dns.answer_code(question, code, verdict.reason)
