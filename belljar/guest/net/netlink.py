"""Netlink, as little of it as the agent needs: attributes, messages, and a request that is acknowledged.

    message    length u32, type u16, flags u16, sequence u32, port u32 (native order), a fixed part, attributes
    attribute  length u16, type u16 (native order), value, padded to 4 bytes

The kernel's own tools (ip, nft) are not used: a template need not have them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

ROUTE: Final = 0
NETFILTER: Final = 12

REQUEST: Final = 0x1
ACK: Final = 0x4
REPLACE: Final = 0x100
CREATE: Final = 0x400

ERROR: Final = 2
HEADER: Final = struct.Struct("=IHHII")

_ATTRIBUTE: Final = struct.Struct("=HH")
_NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF
_ANSWER_S: Final = 10.0


def attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """A number the way netfilter wants it: 32 bits, big endian."""
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


def message(kind: int, flags: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, flags | REQUEST, 0, 0) + body


def netfilter(subsystem: int, kind: int, family: int, attributes: bytes, *, flags: int = 0, resource: int = 0) -> bytes:
    return message(subsystem << 8 | kind, flags, struct.pack(">BBH", family, 0, resource) + attributes)


def parse_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message."""
    start = 0
    while start + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, start)
        if not HEADER.size <= length <= len(data) - start:
            return
        yield kind, data[start + HEADER.size : start + length]
        start += (length + 3) & ~3


def parse_attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if not _ATTRIBUTE.size <= length <= len(data) - start:
            break
        found[kind & _TYPE_MASK] = data[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
    return found


def open_netlink(family: int) -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
    sock.bind((0, 0))
    return sock


def send_acknowledged(sock: socket.socket, data: bytes, count: int = 1) -> None:
    """Send `count` messages that ask for an ACK, and wait for all of them. The first refusal is raised."""
    sock.settimeout(_ANSWER_S)
    sock.send(data)
    while count:
        for kind, body in parse_messages(sock.recv(65536)):
            if kind == ERROR:
                (code,) = struct.unpack_from("=i", body)
                if code:
                    raise OSError(-code, os.strerror(-code))
                count -= 1
