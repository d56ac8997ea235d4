"""Messages of a kernel: bytes against messages, and the limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.wire.pipe import HEADER, MAX_BLOB, MAX_JSON, Decoder, PipeError, encode

MESSAGES: list[tuple[dict[str, Any], bytes]] = [
    ({"do": "run", "n": 1, "code": "1+1", "stdin": None}, b""),
    ({"ev": "output", "parts": [{"mime": "image/png", "size": 4}]}, b"\x89PNG"),
    ({}, b""),
    ({"text": "é 😀 \ud800 \0"}, bytes(range(256)) * 300),
]


def test_a_message_is_a_header_json_and_a_blob() -> None:
    assert encode({"a": 1}, b"xyz") == bytes.fromhex("0000000700000003") + b'{"a":1}xyz'


def test_messages_read_back_as_they_were_sent() -> None:
    assert Decoder().feed(b"".join(encode(*message) for message in MESSAGES)) == MESSAGES


@given(st.integers(1, 5000))
def test_messages_arrive_however_the_stream_is_cut(size: int) -> None:
    stream = b"".join(encode(*message) for message in MESSAGES)
    decoder = Decoder()
    assert [got for at in range(0, len(stream), size) for got in decoder.feed(stream[at : at + size])] == MESSAGES
    assert decoder.buffered == 0


@pytest.mark.parametrize("header", [(MAX_JSON + 1, 0), (2, MAX_BLOB + 1), (0, 0), (1, 0), (2**32 - 1, 2**32 - 1)])
def test_a_length_beyond_the_limits_is_refused_before_its_bytes_arrive(header: tuple[int, int]) -> None:
    with pytest.raises(PipeError, match="not allowed"):
        Decoder().feed(HEADER.pack(*header))


@pytest.mark.parametrize("body", [b"[]", b"{,}", b"\xff\xfe", b"[" * 100_000, b"12"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(PipeError):
        Decoder().feed(HEADER.pack(len(body), 0) + body)


def test_a_peer_that_never_finishes_costs_one_message_at_most() -> None:
    decoder = Decoder()
    for _ in range(1000):
        assert len(decoder.feed(encode({"ev": "clear"}) * 10)) == 10
    assert decoder.buffered == 0
    assert decoder.feed(HEADER.pack(2, MAX_BLOB) + b"{}") == []
    assert decoder.buffered == HEADER.size + 2


def test_what_the_peer_would_refuse_is_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"code": "x" * MAX_JSON})
    with pytest.raises(ValueError, match="blob"):
        encode({}, bytes(MAX_BLOB + 1))
