"""Messages between the agent and a context's kernel, over a stream socket inside the guest.

A message is a header of 8 bytes, big endian, a JSON object and a blob:

     0               4               8
    +---------------+---------------+--------------------+-----------
    |  JSON length  |  blob length  | JSON object, ASCII | blob ...
    +---------------+---------------+--------------------+-----------

A blob holds what JSON is poor at: images, long text. Both ends are in one guest, but a kernel runs the user's code, so the agent
trusts nothing that arrives. JSON is sent as ASCII: a lone surrogate in a string, which Python allows, survives as its escape.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

HEADER: Final = struct.Struct(">II")
MAX_JSON: Final = 1024 * 1024
MAX_BLOB: Final = 64 * 1024 * 1024

# Made once: json.dumps with options of its own makes an encoder per call.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class PipeError(Exception):
    """The peer sent what is no message; the stream cannot be read any further."""


def encode(message: dict[str, Any], blob: bytes = b"") -> bytes:
    """A message as it travels; ValueError if it is longer than the peer would take."""
    body = _ENCODER.encode(message).encode("ascii")
    if len(body) > MAX_JSON:
        raise ValueError(f"a message of {len(body)} bytes of JSON is longer than the {MAX_JSON} allowed")
    if len(blob) > MAX_BLOB:
        raise ValueError(f"a blob of {len(blob)} bytes is longer than the {MAX_BLOB} allowed")
    return HEADER.pack(len(body), len(blob)) + body + blob


class Decoder:
    """Bytes to messages. Between two calls it holds one unfinished message at most."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The messages that `data` completes. After a PipeError there is nothing more to be had from this decoder."""
        self._buffer += data
        messages: list[tuple[dict[str, Any], bytes]] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= HEADER.size:
                json_length, blob_length = HEADER.unpack_from(view, start)
                if not 2 <= json_length <= MAX_JSON or blob_length > MAX_BLOB:
                    raise PipeError(f"a message of {json_length} bytes of JSON and a blob of {blob_length} is not allowed")
                middle = start + HEADER.size + json_length
                if middle + blob_length > len(view):
                    break
                message = _parse(bytes(view[start + HEADER.size : middle]))
                start = middle + blob_length
                messages.append((message, bytes(view[middle:start])))
        del self._buffer[:start]
        return messages


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PipeError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise PipeError("JSON, but not an object")
    return message
