"""Bytes against events: the layout, the limits, and the search for resync marks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.wire import frames
from belljar.wire.frames import (
    ACK,
    ANNOUNCE,
    DATA,
    END,
    HEADER_SIZE,
    HELLO,
    MAGIC,
    MAX_HELD,
    MAX_PAYLOAD,
    MESSAGE,
    Decoder,
    Event,
    WireError,
    decode_json,
    encode_header,
    encode_json,
    encode_mark,
    split_data,
)

NONCE = b"0123456789abcdef"
OTHER = b"fedcba9876543210"


def data_frame(payload: bytes, channel: int = 1) -> bytes:
    return b"".join(encode_header(DATA, channel, len(part), 1) + part for part in split_data(payload, MAX_PAYLOAD))


def fresh_decoder() -> Decoder:
    return Decoder(lambda kind, nonce: True)


def decoder() -> Decoder:
    made = fresh_decoder()
    assert made.feed(encode_mark(HELLO, NONCE)) == [Event(HELLO, 0, 0, NONCE)]
    return made


def feed_slowly(target: Decoder, data: bytes) -> list[Event]:
    return [event for index in range(len(data)) for event in target.feed(data[index : index + 1])]


def joined(events: list[Event]) -> bytes:
    return b"".join(event.payload for event in events if event.kind == DATA)


def test_header_is_twelve_bytes_big_endian() -> None:
    assert encode_header(DATA, 0x01020304, 5, 2).hex() == "020200000102030400000005"


def test_no_byte_of_magic_repeats_or_is_ascii() -> None:
    assert len(set(MAGIC)) == len(MAGIC) == 16
    assert all(byte >= 0x80 for byte in MAGIC)
    assert MAX_PAYLOAD >> 16 < 0x80


def test_nothing_is_read_before_the_first_mark() -> None:
    made = fresh_decoder()
    assert made.feed(data_frame(b"old") * 100) == []
    assert made.buffered < len(MAGIC)


def test_frames_byte_by_byte_are_the_same_as_at_once() -> None:
    stream = data_frame(b"abc") + encode_header(END, 1, 0) + data_frame(MAGIC * 3)
    assert feed_slowly(decoder(), stream) == decoder().feed(stream)


def test_mark_byte_by_byte_is_found() -> None:
    assert feed_slowly(fresh_decoder(), encode_mark(ACK, NONCE)) == [Event(ACK, 0, 0, NONCE)]


def test_mark_in_the_middle_of_a_frame_ends_it() -> None:
    made = decoder()
    assert made.feed(data_frame(b"x" * 1000)[:500]) == []
    assert made.feed(encode_mark(ANNOUNCE, OTHER) + data_frame(b"new")) == [Event(ANNOUNCE, 0, 0, OTHER), Event(DATA, 1, 1, b"new")]


def test_what_a_chunk_holds_before_a_mark_is_dropped() -> None:
    assert decoder().feed(data_frame(b"old") + encode_mark(HELLO, OTHER)) == [Event(HELLO, 0, 0, OTHER)]


@pytest.mark.parametrize("cut", range(frames.MARK_SIZE))
def test_mark_that_was_cut_off_does_not_eat_the_next_one(cut: int) -> None:
    stream = encode_mark(HELLO, NONCE)[:cut] + encode_mark(HELLO, OTHER) + data_frame(b"new")
    expected = [Event(HELLO, 0, 0, OTHER), Event(DATA, 1, 1, b"new")]
    assert fresh_decoder().feed(stream) == expected
    assert feed_slowly(fresh_decoder(), stream) == expected


def test_unknown_kind_of_mark_is_no_mark() -> None:
    made = decoder()
    assert made.feed(MAGIC + b"\x77" + NONCE + data_frame(b"x")) == []
    assert not made.framed


def test_frames_behind_somebody_elses_mark_are_not_read() -> None:
    made = Decoder(lambda kind, nonce: nonce == NONCE)
    assert made.feed(encode_mark(ACK, OTHER) + b"\xff" * 1000) == [Event(ACK, 0, 0, OTHER)]
    assert made.feed(encode_mark(ACK, NONCE) + data_frame(b"x"))[1:] == [Event(DATA, 1, 1, b"x")]


@pytest.mark.parametrize(
    "header",
    [
        encode_header(0, 1, 5),
        encode_header(99, 1, 5),
        encode_header(DATA, 1, 0),
        encode_header(DATA, 1, MAX_PAYLOAD + 1),
        encode_header(DATA, 1, 0xFFFFFFFF),
        encode_header(DATA, 1, 5, frames.RESULT + 1),
        encode_header(MESSAGE, 1, 5, 1),
        encode_header(END, 1, 1),
        encode_header(frames.CREDIT, 1, 5),
        encode_header(frames.PING, 0, 9),
        frames.HEADER.pack(DATA, 1, 1, 1, 5),
    ],
)
def test_impossible_header_is_refused_before_its_payload_is_waited_for(header: bytes) -> None:
    with pytest.raises(WireError):
        decoder().feed(header)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 20_000])
def test_bad_json_is_a_wire_error(text: bytes) -> None:
    with pytest.raises(WireError):
        decode_json(text)


def test_json_that_does_not_fit_one_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        encode_json({"x": "y" * MAX_PAYLOAD})


def test_json_is_ascii_whatever_it_holds() -> None:
    body = {"x": MAGIC.decode("latin-1"), "y": "\udcff"}
    assert encode_json(body).isascii()
    assert decode_json(encode_json(body)) == body


@pytest.mark.parametrize("head", [0, 1, 2, 3, 15])
def test_magic_in_a_payload_never_reaches_the_wire(head: int) -> None:
    """Also where the end of a header would make up for the beginning that a payload lacks: a length that ends in MAGIC[:2]."""
    rest = MAGIC[head:]
    for size in (MAGIC[0], int.from_bytes(MAGIC[:2], "big"), 1000):
        payload = rest + bytes(max(0, size - len(rest)))
        wire = data_frame(payload)
        assert MAGIC not in wire
        assert joined(decoder().feed(wire)) == payload


MAGIC_SOUP = st.lists(
    st.one_of(st.just(MAGIC), st.just(MAGIC[:7]), st.just(MAGIC[2:]), st.just(MAGIC[9:]), st.binary(max_size=20)), max_size=12
).map(b"".join)


@given(st.lists(MAGIC_SOUP, max_size=6), st.integers(1, 64), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_any_payload_survives_any_cutting(payloads: list[bytes], limit: int, rng: random.Random) -> None:
    stream = b"".join(
        encode_header(DATA, 1, len(part), 1) + part for payload in payloads for part in split_data(payload, limit)
    )
    assert MAGIC not in stream
    made, events = decoder(), []
    while stream:
        size = rng.randint(1, 40)
        events += made.feed(stream[:size])
        stream = stream[size:]
    assert joined(events) == b"".join(payloads)


@given(MAGIC_SOUP, MAGIC_SOUP, st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_a_session_cut_anywhere_is_followed_by_a_clean_one(old: bytes, new: bytes, cut: int) -> None:
    stream = (encode_mark(HELLO, NONCE) + data_frame(old))[:cut] + encode_mark(HELLO, OTHER) + data_frame(new)
    for events in (fresh_decoder().feed(stream), feed_slowly(fresh_decoder(), stream)):
        last = max(index for index, event in enumerate(events) if event.kind == HELLO)
        assert events[last].payload == OTHER
        assert joined(events[last:]) == new


@pytest.mark.parametrize("left", range(20))
@pytest.mark.parametrize("cut", range(1, 16))
def test_mark_in_two_pieces_after_a_cut_frame_is_found(left: int, cut: int) -> None:
    """Also when its first piece completes the frame, or looks like the next header."""
    made = decoder()
    made.feed(data_frame(b"x" * 100)[: 112 - left])
    mark = encode_mark(ANNOUNCE, OTHER)
    made.feed(mark[:cut])
    assert made.feed(mark[cut:]) == [Event(ANNOUNCE, 0, 0, OTHER)]


@given(st.lists(st.binary(max_size=300), max_size=30), st.booleans())
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused_or_bounded(chunks: list[bytes], framed: bool) -> None:
    made = decoder() if framed else fresh_decoder()
    try:
        for chunk in chunks:
            made.feed(chunk)
            assert made.buffered <= MAX_HELD
    except WireError:
        pass


def test_long_random_garbage_after_valid_frames_keeps_the_buffer_bounded() -> None:
    rng = random.Random(7)
    for _ in range(200):
        made = decoder()
        good = data_frame(rng.randbytes(rng.randint(1, 5000)))
        stream = bytearray(good * 3)
        for _ in range(rng.randint(0, 5)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        try:
            for start in range(0, len(stream), 997):
                made.feed(bytes(stream[start : start + 997]))
                assert made.buffered <= MAX_HELD
        except WireError:
            pass


def test_largest_frame_passes_and_leaves_nothing_behind() -> None:
    made, payload = decoder(), bytes(MAX_PAYLOAD)
    wire = data_frame(payload)
    assert len(wire) == MAX_PAYLOAD + HEADER_SIZE
    assert made.feed(wire[:-1]) == []
    assert made.buffered <= MAX_HELD
    assert joined(made.feed(wire[-1:])) == payload
    assert made.buffered < len(MAGIC)
