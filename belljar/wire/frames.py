"""Frames: how bytes on the wire are laid out, encoded and decoded.

A frame is a header of 12 bytes, big endian, and a payload:

     0        1        2        3        4                 8                 12
    +--------+--------+--------+--------+--------+--------+--------+--------+----------------
    |  type  | stream |   reserved (0)  |     channel     |  payload length | payload ...
    +--------+--------+--------+--------+--------+--------+--------+--------+----------------

    type      payload                                       stream       who
    OPEN      JSON {"op": ..., parameters}                  0            host
    DATA      1 .. MAX_PAYLOAD bytes                        0 in, 1 out, 2 err, 3 results
    MESSAGE   JSON object                                   0            both
    END       none: this side sends no more on the channel  0            both
    RESET     JSON {"code", "message", "details"}           0            both
    CREDIT    u32: the peer may send that much more         0            both
    PING      8 bytes, channel 0                            0            host
    PONG      the same 8 bytes, channel 0                   0            guest

A resync mark starts a session. It is no frame: it may arrive in the middle of one, because a snapshot, a restore or the
death of either end can cut the stream at any byte. The decoder therefore looks for it before it looks for frames.

     0                       16       17                      33
    +-----------------------+--------+-----------------------+
    |         MAGIC         |  kind  |     nonce (ASCII)     |      HELLO from the host, ACK from the guest,
    +-----------------------+--------+-----------------------+      ANNOUNCE from an agent that has just started

For this to work MAGIC must never occur in ordinary traffic, wherever frames meet:

- Every byte of MAGIC is 0x80 or more, and JSON is sent as ASCII, so only DATA payloads can hold it.
- A run of 16 such bytes cannot span the start of a header (the type is small), nor the high half of a length (it is 2 at most).
  So an accidental MAGIC holds at most the last two bytes of a header, and the other fourteen lie in one payload.
- `split_data` cuts a payload inside every occurrence of those last fourteen bytes.
- No byte of MAGIC repeats, so a cut-off MAGIC followed by a whole one is still found where it is; and as a nonce is ASCII,
  a cut-off mark followed by a whole one is seen to be broken instead of eating the second.

What remains: if a frame was cut off less than 16 bytes before its end, and the mark behind it arrives in two reads, the frame
is completed by the mark's first bytes. It belongs to a session that the rest of the mark ends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

OPEN: Final = 1
DATA: Final = 2
MESSAGE: Final = 3
END: Final = 4
RESET: Final = 5
CREDIT: Final = 6
PING: Final = 7
PONG: Final = 8

# Kinds of resync marks share the number space of events with the frame types.
HELLO: Final = 0x11
ACK: Final = 0x12
ANNOUNCE: Final = 0x13

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
RESULT: Final = 3  # what a cell shows: images, tables

HEADER: Final = struct.Struct(">BBHII")
HEADER_SIZE: Final = HEADER.size
MAX_PAYLOAD: Final = 128 * 1024
MAX_FRAME: Final = HEADER_SIZE + MAX_PAYLOAD

MAGIC: Final = bytes.fromhex("e3b7f5d18ac69dfe92a8dbc085eebac9")
NONCE_SIZE: Final = 16
MARK_SIZE: Final = len(MAGIC) + 1 + NONCE_SIZE
MAX_HELD: Final = MAX_FRAME + len(MAGIC)

_GUARD: Final = MAGIC[2:]
_GUARD_CUT: Final = 7

# Shortest and longest payload a type may have, checked before any of the payload is waited for.
_LENGTHS: Final[dict[int, tuple[int, int]]] = {
    OPEN: (2, MAX_PAYLOAD),
    DATA: (1, MAX_PAYLOAD),
    MESSAGE: (2, MAX_PAYLOAD),
    END: (0, 0),
    RESET: (2, MAX_PAYLOAD),
    CREDIT: (4, 4),
    PING: (8, 8),
    PONG: (8, 8),
}


class WireError(Exception):
    """The peer sent what this protocol does not allow; the session cannot go on."""


class Event(NamedTuple):
    """What was received: a frame, or a resync mark (then `payload` is its nonce)."""

    kind: int
    channel: int
    stream: int
    payload: bytes


def encode_header(kind: int, channel: int, length: int, stream: int = 0) -> bytes:
    return HEADER.pack(kind, stream, 0, channel, length)


def encode_mark(kind: int, nonce: bytes) -> bytes:
    if len(nonce) != NONCE_SIZE or not nonce.isascii():
        raise ValueError(f"a nonce is {NONCE_SIZE} ASCII bytes")
    return MAGIC + bytes((kind,)) + nonce


def encode_json(body: dict[str, Any]) -> bytes:
    """JSON as it travels; ValueError if it does not fit one frame (long things travel as DATA)."""
    encoded = json.dumps(body, separators=(",", ":")).encode("ascii")
    if len(encoded) > MAX_PAYLOAD:
        raise ValueError(f"a message of {len(encoded)} bytes is longer than the {MAX_PAYLOAD} that fit one frame")
    return encoded


def decode_json(payload: bytes) -> dict[str, Any]:
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise WireError("JSON, but not an object")
    return body


def split_data(data: bytes, limit: int) -> Iterator[bytes]:
    """Payloads of at most `limit` bytes that together are `data`, none of which can make a MAGIC on the wire."""
    start = 0
    while start < len(data):
        stop = min(start + limit, len(data))
        found = data.find(_GUARD, start, stop)
        if found >= 0:
            stop = found + _GUARD_CUT
        yield data[start:stop]
        start = stop


class Decoder:
    """Bytes to events. Between two calls it holds one unfinished frame at most, and the last bytes of what went before, as they
    may be the beginning of a mark: MAX_HELD bytes together.

    `starts` says whether a mark (kind, nonce) begins a session that we take part in. Only then the bytes behind it are frames;
    until such a mark, and after `forget`, everything but marks is thrown away.
    """

    def __init__(self, starts: Callable[[int, bytes], bool]) -> None:
        self._starts = starts
        self._buffer = bytearray()
        self._parsed = 0  # what lies before is kept only because a mark may begin there
        self._scanned = 0  # no MAGIC begins before this place
        self.framed = False

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def forget(self) -> None:
        """Throw away everything up to the next resync mark."""
        self.framed = False

    def feed(self, data: bytes) -> list[Event]:
        """Events of `data`. What a chunk holds before a resync mark belongs to a session that is over: it is dropped."""
        buffer = self._buffer
        buffer += data
        events: list[Event] = []
        start, scan = self._parsed, self._scanned
        while (found := buffer.find(MAGIC, scan)) >= 0:
            scan = found + len(MAGIC)
            nonce = bytes(buffer[scan + 1 : found + MARK_SIZE])
            if len(nonce) < NONCE_SIZE and nonce.isascii():  # the rest of the mark is still to come
                del buffer[:found]
                self._parsed = self._scanned = 0
                return []
            if buffer[scan] not in (HELLO, ACK, ANNOUNCE) or not nonce.isascii():
                self.framed, events, start = False, [], scan  # cut off by another mark, or no mark at all
                continue
            self.framed, events = self._starts(buffer[scan], nonce), [Event(buffer[scan], 0, 0, nonce)]
            start = scan = found + MARK_SIZE
        start = self._parse_frames(start, events) if self.framed else len(buffer)
        self._scanned = max(scan, len(buffer) - len(MAGIC) + 1)
        excess = min(start, self._scanned)
        del buffer[:excess]
        self._parsed, self._scanned = start - excess, self._scanned - excess
        return events

    def _parse_frames(self, start: int, events: list[Event]) -> int:
        end = len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - start >= HEADER_SIZE:
                kind, stream, reserved, channel, length = HEADER.unpack_from(view, start)
                low, high = _LENGTHS.get(kind, (1, 0))
                if not low <= length <= high or reserved or stream > (RESULT if kind == DATA else 0):
                    if self._find_cut_mark() < start + HEADER_SIZE:
                        break  # no header, but perhaps the beginning of a mark
                    raise WireError(f"a header that means nothing: {bytes(view[start : start + HEADER_SIZE]).hex()}")
                stop = start + HEADER_SIZE + length
                if stop > end:
                    break
                events.append(Event(kind, channel, stream, bytes(view[start + HEADER_SIZE : stop])))
                start = stop
        return start

    def _find_cut_mark(self) -> int:
        """Where the buffer ends in the beginning of a MAGIC; its length if it does not."""
        buffer = self._buffer
        found = buffer.rfind(MAGIC[:1], max(0, len(buffer) - len(MAGIC) + 1))
        return found if found >= 0 and MAGIC.startswith(buffer[found:]) else len(buffer)
