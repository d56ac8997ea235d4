"""Fifty clients at once that are slow, stop halfway, vanish or flood: others are served meanwhile, and nothing of them stays."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pandastack
import pytest

from tests.server.conftest import Api, Server, eventually
from tests.server.test_large_bodies import MAY_GROW, Memory, in_flight

CLIENTS = 50
# Of a flood; far more than what may stay of it.
FLOOD_BYTES = 24 * 1024 * 1024
TEXT, PING, CONTINUED = 1, 9, 0


class Visit:
    """One connection, with a token and a small window."""

    def __init__(self, api: Api, at: str) -> None:
        place = urlsplit(api.url)
        self._token, self.at = api.token, at
        self.connection = socket.socket()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.connection.settimeout(60)
        self.connection.connect((place.hostname, place.port))

    def say(self, line: str, *headers: str, body: bytes = b"") -> None:
        head = "".join(f"{each}\r\n" for each in ("Host: here", f"Authorization: Bearer {self._token}", *headers))
        self.connection.sendall(f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def upgrade(self, route: str) -> None:
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        self.say(f"GET {self.at}/{route}", "Connection: Upgrade", "Upgrade: websocket", key, "Sec-WebSocket-Version: 13")
        assert self.connection.recv(12) == b"HTTP/1.1 101"

    def flood(self, piece: bytes, much: int = FLOOD_BYTES) -> None:
        """Until the server takes no more, or enough was sent."""
        self.connection.settimeout(2)
        with suppress(OSError):
            for _ in range(much // len(piece)):
                self.connection.sendall(piece)


def frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack("!H", len(data))
    return bytes([(0x80 if last else 0) | opcode]) + size + bytes(4) + data


def half_a_head(visit: Visit) -> None:
    visit.connection.sendall(f"GET {visit.at} HTTP/1.1\r\nHost: he".encode())


def half_a_body(visit: Visit) -> None:
    visit.say(f"POST {visit.at}/exec", "Content-Length: 1000", body=b'{"cmd": "ec')


def half_an_upload(visit: Visit) -> None:
    visit.say(f"PUT {visit.at}/fs?path=/tmp/rude", "Content-Length: 1000000000", body=bytes(100_000))


def half_a_chunk(visit: Visit) -> None:
    visit.say(f"PUT {visit.at}/fs/tree?path=/tmp/rude", "Transfer-Encoding: chunked", body=b"ffff\r\n" + bytes(1000))


def reads_nothing(visit: Visit) -> None:
    visit.say(f"GET {visit.at}/fs?path=/tmp/much")


def follows_and_reads_nothing(visit: Visit) -> None:
    body = b'{"cmd": "yes rude"}'
    visit.say(f"POST {visit.at}/exec/stream", f"Content-Length: {len(body)}", body=body)


def half_closed(visit: Visit) -> None:
    visit.say(f"GET {visit.at}/events?follow=1")
    visit.connection.shutdown(socket.SHUT_WR)


def many_at_once(visit: Visit) -> None:
    visit.flood(f"GET {visit.at} HTTP/1.1\r\nHost: here\r\n\r\n".encode() * 100, 1_000_000)


def pings_and_reads_nothing(visit: Visit) -> None:
    visit.upgrade("exec/ws")
    visit.flood(frame(PING, bytes(125)) * 100)


def empty_fragments(visit: Visit) -> None:
    visit.upgrade("exec/ws")
    visit.connection.sendall(frame(TEXT, last=False))
    visit.flood(frame(CONTINUED, last=False) * 2000)


def messages_that_nobody_takes(visit: Visit) -> None:
    visit.upgrade("exec/pty?cmd=sleep%20600")
    visit.flood(frame(2, bytes(60_000)))


KINDS: list[Callable[[Visit], None]] = [
    half_a_head,
    half_a_body,
    half_an_upload,
    half_a_chunk,
    reads_nothing,
    follows_and_reads_nothing,
    half_closed,
    many_at_once,
    pings_and_reads_nothing,
    empty_fragments,
    messages_that_nobody_takes,
]


def descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.timeout(600)
def test_rude_clients_cost_little_and_leave_nothing(server: Server, api: Api, client: pandastack.Client) -> None:
    with client.sandboxes.create("base") as box:
        box.exec("head -c 50000000 /dev/zero > /tmp/much")
        processes = f"/v1/sandboxes/{box.id}/processes"
        api("GET", processes)
        open_before, memory = descriptors(server), Memory(server)
        visits = [Visit(api, f"/v1/sandboxes/{box.id}") for _ in range(CLIENTS)]
        rude = [threading.Thread(target=KINDS[number % len(KINDS)], args=(visit,)) for number, visit in enumerate(visits)]
        for each in rude:
            each.start()
        while any(each.is_alive() for each in rude):
            assert box.exec("echo on").stdout == "on\n"
        assert api("GET", "/healthz").status_code == 200
        grown = memory.grown()
        for number, visit in enumerate(visits):
            if number % 2:  # without a word: what is under way is told by a reset
                visit.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            visit.connection.close()
        eventually(lambda: in_flight(api, box) == 0, "an end of all that they left")
        eventually(lambda: descriptors(server) <= open_before, f"{open_before} descriptors, as before")
        print(f"the server grew by {grown / 1e6:.1f} MB")
        assert grown <= 2 * MAY_GROW, f"{CLIENTS} rude clients cost {grown} bytes"
        assert [each["command"] for each in api("GET", processes).json()["processes"] if each["running"]] == []
        assert "rude" not in box.exec("ls -A /tmp").stdout
    assert not [line for line in server.log() if line.get("exception") or line["level"] == "error"]
