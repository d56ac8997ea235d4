"""DNS messages (RFC 1035), as far as a name service for one guest needs them: one question in, one short answer out.

A refusal carries its reason as an extended error (RFC 8914) for those who speak EDNS, as `dig` does.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

A: Final = 1
PTR: Final = 12
AAAA: Final = 28

OK: Final = 0
MALFORMED: Final = 1
FAILED: Final = 2
NO_SUCH_NAME: Final = 3
NOT_IMPLEMENTED: Final = 4

_HEADER: Final = struct.Struct(">HHHHHH")
_RESPONSE, _RECURSION_WANTED, _RECURSION_OFFERED = 0x8000, 0x0100, 0x0080
_OPCODE: Final = 0x7800
_INTERNET: Final = 1
_OPT: Final = 41
_EXTENDED_ERROR, _BLOCKED = 15, 15
_UDP_SIZE: Final = 1232
_TO_QUESTION: Final = b"\xc0\x0c"  # a pointer to the name in the question
_LABEL: Final = re.compile(rb"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_REVERSE: Final = ".in-addr.arpa"


class Malformed(Exception):
    """Not a question that has an answer. `number` is what it can be refused under."""

    def __init__(self, number: int | None) -> None:
        super().__init__("not a DNS question")
        self.number = number


class Question(NamedTuple):
    number: int
    flags: int
    name: str  # lower case, without the final dot; empty if no host can have it
    kind: int
    wire: bytes  # as it was asked, to be repeated in the answer
    extended: bool


def parse_question(data: bytes) -> Question:
    if len(data) < _HEADER.size:
        raise Malformed(None)
    number, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & _RESPONSE:
        raise Malformed(None)
    if questions != 1 or answers or authorities:
        raise Malformed(number)
    labels, stop = _parse_name(data, number)
    if stop + 4 > len(data):
        raise Malformed(number)
    kind, group = struct.unpack_from(">HH", data, stop)
    name = b".".join(labels).lower()
    valid = group == _INTERNET and labels and len(name) <= 253 and all(_LABEL.fullmatch(label.lower()) for label in labels)
    wire = data[_HEADER.size : stop + 4]
    extended = additional > 0 and data[stop + 4 : stop + 7] == b"\0" + struct.pack(">H", _OPT)
    return Question(number, flags, name.decode("ascii") if valid else "", kind, wire, extended)


def _parse_name(data: bytes, number: int) -> tuple[list[bytes], int]:
    labels: list[bytes] = []
    place = _HEADER.size
    while place < len(data):
        length = data[place]
        if length == 0:
            return labels, place + 1
        if length > 63 or len(labels) > 127:  # a pointer has nothing to point to in a question
            break
        labels.append(data[place + 1 : place + 1 + length])
        place += 1 + length
    raise Malformed(number)


def is_query(question: Question) -> bool:
    return not question.flags & _OPCODE


def answer_a(question: Question, address: bytes, ttl: int) -> bytes:
    return _render(question, OK, _record(A, ttl, address))


def answer_ptr(question: Question, name: str, ttl: int) -> bytes:
    labels = name.encode("ascii").split(b".")
    return _render(question, OK, _record(PTR, ttl, b"".join(bytes([len(label)]) + label for label in labels) + b"\0"))


def answer_code(question: Question, code: int, reason: str = "") -> bytes:
    """No record: OK means that the name exists, without one of this kind."""
    return _render(question, code, b"", reason)


def answer_malformed(number: int) -> bytes:
    return _HEADER.pack(number, _RESPONSE | _RECURSION_OFFERED | MALFORMED, 0, 0, 0, 0)


def reversed_address(name: str) -> str | None:
    """The IPv4 address that a name for a PTR question is about."""
    parts = name.removesuffix(_REVERSE).split(".")
    if not name.endswith(_REVERSE) or len(parts) != 4:
        return None
    numbers = [int(part) for part in reversed(parts) if part.isdecimal() and len(part) <= 3]
    return ".".join(map(str, numbers)) if len(numbers) == 4 and max(numbers) < 256 else None


def _record(kind: int, ttl: int, data: bytes) -> bytes:
    return _TO_QUESTION + struct.pack(">HHIH", kind, _INTERNET, ttl, len(data)) + data


def _render(question: Question, code: int, record: bytes, reason: str = "") -> bytes:
    flags = _RESPONSE | _RECURSION_OFFERED | (question.flags & (_OPCODE | _RECURSION_WANTED)) | code
    extra = b""
    if question.extended:
        text = reason.encode("utf-8", "replace")[:400]
        option = struct.pack(">HHH", _EXTENDED_ERROR, len(text) + 2, _BLOCKED) + text if reason else b""
        extra = b"\0" + struct.pack(">HHIH", _OPT, _UDP_SIZE, 0, len(option)) + option
    header = _HEADER.pack(question.number, flags, 1, bool(record), 0, bool(extra))
    return header + question.wire + record + extra
