"""The state machine: sessions, channels, credit, and what a hostile peer gets."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.wire import frames
from belljar.wire.frames import (
    ACK,
    ANNOUNCE,
    CREDIT,
    DATA,
    END,
    HEADER_SIZE,
    HELLO,
    MAX_FRAME,
    MAX_HELD,
    MESSAGE,
    OPEN,
    PONG,
    RESET,
    Event,
    WireError,
    decode_json,
    encode_header,
    encode_mark,
)
from belljar.wire.mux import HIGH_WATER, MAX_CHANNELS, WINDOW, Mux


def pair() -> tuple[Mux, Mux]:
    """A host and a guest in session."""
    host, guest = Mux(host=True), Mux(host=False)
    host.hello()
    guest.receive(host.take_output())
    host.receive(guest.take_output())
    assert host.live
    assert guest.live
    return host, guest


def to(receiver: Mux, sender: Mux) -> list[Event]:
    return receiver.receive(sender.take_output())


def opened() -> tuple[Mux, Mux, int]:
    host, guest = pair()
    number = host.open({"op": "x"})
    to(guest, host)
    return host, guest, number


def kinds(events: list[Event]) -> list[int]:
    return [event.kind for event in events]


# -- sessions


def test_hello_is_answered_and_starts_a_session() -> None:
    host, guest = Mux(host=True), Mux(host=False)
    host.hello()
    assert kinds(to(guest, host)) == [HELLO]
    assert not host.live
    assert kinds(to(host, guest)) == [ACK]


def test_channels_may_follow_the_hello_at_once() -> None:
    host, guest = Mux(host=True), Mux(host=False)
    host.hello()
    host.open({"op": "x"})
    assert kinds(to(guest, host)) == [HELLO, OPEN]
    guest.send_message(1, {})
    assert kinds(to(host, guest)) == [ACK, MESSAGE]


def test_new_hello_drops_channels_and_output_of_the_old_session() -> None:
    _, guest, number = opened()
    guest.send_data(number, b"old", 1)
    second = Mux(host=True)
    second.hello()
    to(guest, second)
    assert not guest.is_open(number)
    assert kinds(to(second, guest)) == [ACK]


def test_answer_to_another_hosts_hello_is_not_ours() -> None:
    host = Mux(host=True)
    host.hello()
    assert host.receive(encode_mark(ACK, b"0" * 16) + encode_header(DATA, 1, 3, 1) + b"abc") == []
    assert not host.live


def test_repeated_hello_is_answered_twice_and_reported_once() -> None:
    host, guest = Mux(host=True), Mux(host=False)
    host.hello()
    first = host.take_output()
    host.repeat_hello()
    guest.receive(first)
    assert kinds(to(host, guest)) == [ACK]
    to(guest, host)
    assert to(host, guest) == []
    assert host.live


def test_announcement_ends_the_session_on_the_host() -> None:
    host, guest, _ = opened()
    guest.announce()
    assert kinds(to(host, guest)) == [ANNOUNCE]
    assert not host.live


def test_announcement_in_the_middle_of_a_frame_is_seen() -> None:
    host, guest, number = opened()
    guest.send_data(number, bytes(5000), 1)
    host.receive(guest.take_output()[:2000])
    guest.announce()
    assert kinds(to(host, guest)) == [ANNOUNCE]


@pytest.mark.parametrize("kind", [HELLO, ACK])
def test_host_refuses_a_mark_that_nobody_asked_for(kind: int) -> None:
    host, _ = pair()
    with pytest.raises(WireError):
        host.receive(encode_mark(kind, b"0" * 16))


def test_host_refuses_a_broken_mark() -> None:
    host, _ = pair()
    with pytest.raises(WireError):
        host.receive(frames.MAGIC + b"\x00" * 40)


def test_host_channel_numbers_grow_over_sessions() -> None:
    host, guest, number = opened()
    host.hello()
    to(guest, host)
    to(host, guest)
    assert host.open({"op": "y"}) > number
    assert kinds(to(guest, host)) == [OPEN]


# -- channels


def test_data_message_and_end_arrive_in_order() -> None:
    host, guest, number = opened()
    guest.send_message(number, {"a": 1})
    guest.send_data(number, b"out", 1)
    guest.send_data(number, b"err", 2)
    guest.send_end(number)
    events = to(host, guest)
    assert kinds(events) == [MESSAGE, DATA, DATA, END]
    assert [event.stream for event in events] == [0, 1, 2, 0]


def test_channel_is_over_when_both_sides_have_ended() -> None:
    host, guest, number = opened()
    host.send_end(number)
    to(guest, host)
    assert guest.is_open(number)
    guest.send_end(number)
    to(host, guest)
    assert not host.is_open(number)
    assert not guest.is_open(number)


def test_reset_carries_its_error_and_ends_the_channel() -> None:
    host, guest, number = opened()
    guest.reset(number, "file_not_found", "no", {"path": "/x"})
    (event,) = to(host, guest)
    assert event.kind == RESET
    assert decode_json(event.payload) == {"code": "file_not_found", "message": "no", "details": {"path": "/x"}}
    assert not host.is_open(number)


def test_reset_with_absurd_details_still_fits() -> None:
    host, guest, number = opened()
    guest.reset(number, "internal", "x" * 200_000, {"blob": "y" * 200_000})
    assert kinds(to(host, guest)) == [RESET]


def test_frames_that_cross_a_reset_are_ignored() -> None:
    host, guest, number = opened()
    guest.send_data(number, b"late", 1)
    guest.send_end(number)
    late = guest.take_output()
    host.reset(number, "cancelled", "")
    assert host.receive(late) == []


@pytest.mark.parametrize("kind", [DATA, MESSAGE, END, RESET, CREDIT])
def test_frames_for_a_channel_that_never_was_are_refused(kind: int) -> None:
    host, _, number = opened()
    payload = {DATA: b"x", END: b"", CREDIT: b"\0\0\0\1"}.get(kind, b"{}")
    with pytest.raises(WireError):
        host.receive(encode_header(kind, number + 1, len(payload), int(kind == DATA)) + payload)


def test_host_refuses_to_be_opened() -> None:
    host, _, number = opened()
    for channel in (number, number + 1):
        with pytest.raises(WireError):
            host.receive(encode_header(OPEN, channel, 2) + b"{}")


def test_guest_refuses_numbers_that_do_not_grow() -> None:
    host, guest, number = opened()
    host.reset(number, "x", "")
    to(guest, host)
    with pytest.raises(WireError):
        guest.receive(encode_header(OPEN, number, 2) + b"{}")


@pytest.mark.parametrize("kind", [DATA, MESSAGE, END])
def test_nothing_may_follow_an_end(kind: int) -> None:
    host, guest, number = opened()
    guest.send_end(number)
    to(host, guest)
    payload = {DATA: b"x", END: b""}.get(kind, b"{}")
    with pytest.raises(WireError):
        host.receive(encode_header(kind, number, len(payload), int(kind == DATA)) + payload)


@pytest.mark.parametrize("to_host", [True, False])
def test_streams_have_a_direction(to_host: bool) -> None:
    host, guest, number = opened()
    with pytest.raises(WireError):
        (host if to_host else guest).receive(encode_header(DATA, number, 1, 0 if to_host else 1) + b"x")


def test_only_so_many_channels_may_be_open() -> None:
    host, guest = pair()
    for _ in range(MAX_CHANNELS):
        host.open({"op": "x"})
    with pytest.raises(ValueError, match="channels are open"):
        host.open({"op": "x"})
    assert len(to(guest, host)) == MAX_CHANNELS
    with pytest.raises(WireError):
        guest.receive(encode_header(OPEN, MAX_CHANNELS + 1, 2) + b"{}")


# -- credit


def test_sender_stops_at_the_window_and_goes_on_with_credit() -> None:
    host, guest, number = opened()
    data = bytes(WINDOW * 2)
    sent = 0
    while taken := guest.send_data(number, data[sent:], 1):
        sent += taken
        events = to(host, guest)
    assert WINDOW - 10 * HEADER_SIZE < sent < WINDOW
    assert guest.room(number) == 0
    host.consumed(number, sent)
    assert kinds(to(guest, host)) == [CREDIT]
    assert guest.room(number) > 0
    assert events


def test_peer_that_overruns_its_credit_is_refused() -> None:
    host, _, number = opened()
    frame = encode_header(DATA, number, 60_000, 1) + bytes(60_000)
    with pytest.raises(WireError, match="credit"):
        for _ in range(10):
            host.receive(frame)


def test_tiny_frames_cost_their_header() -> None:
    """Otherwise a flood of one-byte messages would be nearly free to send and dear to keep."""
    host, _, number = opened()
    frame = encode_header(DATA, number, 1, 1) + b"x"
    received = 0
    with pytest.raises(WireError, match="credit"):
        while True:
            received += len(host.receive(frame * 100))
    assert received <= WINDOW // (HEADER_SIZE + 1)


def test_message_without_credit_waits_before_later_data_and_the_end() -> None:
    host, guest, number = opened()
    while guest.send_data(number, bytes(50_000), 1):
        to(host, guest)
    used = WINDOW - guest._channels[number].credit
    guest.send_message(number, {"pad": "x" * 50_000})
    guest.send_end(number)
    assert guest.has_backlog(number)
    assert guest.send_data(number, b"late", 1) == 0
    assert to(host, guest) == []
    host.consumed(number, used)
    to(guest, host)
    assert kinds(to(host, guest)) == [MESSAGE, END]


def test_absurd_credit_is_refused() -> None:
    host, _, number = opened()
    grant = encode_header(CREDIT, number, 4) + struct.pack(">I", 0x7FFFFFFF)
    with pytest.raises(WireError, match="credit"):
        for _ in range(3):
            host.receive(grant)


def test_pending_credit_is_one_frame_however_often_it_is_granted() -> None:
    host, _, number = opened()
    for _ in range(1000):
        host.consumed(number, WINDOW)
    assert host.take_output().count(encode_header(CREDIT, number, 4)) == 1


def test_output_queue_stops_producers() -> None:
    host, guest = pair()
    numbers = [host.open({"op": "x"}) for _ in range(20)]
    to(guest, host)
    for number in numbers:
        guest.send_data(number, bytes(WINDOW), 1)
    assert guest.output_size < HIGH_WATER + MAX_FRAME
    guest.take_output()
    assert guest.room(numbers[-1]) > 0


# -- pings


def test_ping_is_answered_with_its_token() -> None:
    host, guest = pair()
    host.ping(b"12345678")
    assert to(guest, host) == []
    (event,) = to(host, guest)
    assert (event.kind, event.payload) == (PONG, b"12345678")


def test_guest_remembers_one_ping_only() -> None:
    host, guest = pair()
    for _ in range(1000):
        host.ping(b"12345678")
    to(guest, host)
    assert len(guest.take_output()) == HEADER_SIZE + 8


def test_host_refuses_pings() -> None:
    host, _ = pair()
    with pytest.raises(WireError):
        host.receive(encode_header(frames.PING, 0, 8) + bytes(8))


# -- fuzz


FRAME = st.tuples(
    st.sampled_from([OPEN, DATA, MESSAGE, END, RESET, CREDIT, frames.PING, PONG, 0, 42]),
    st.integers(0, 4),
    st.integers(0, 5),
    st.one_of(st.binary(max_size=30), st.just(b"{}"), st.just(b"\0\0\1\0"), st.just(b"")),
).map(lambda parts: encode_header(parts[0], parts[2], len(parts[3]), parts[1]) + parts[3])

HOSTILE = st.lists(
    st.one_of(
        FRAME,
        st.binary(max_size=50),
        st.builds(encode_mark, st.sampled_from([HELLO, ACK, ANNOUNCE]), st.just(b"0" * 16)),
        st.just(frames.MAGIC),
    ),
    max_size=40,
)


def held(mux: Mux) -> int:
    """All that a mux holds for its peer."""
    return mux.buffered + mux.output_size + len(mux._grants)


@given(HOSTILE, st.booleans(), st.integers(1, 200))
@settings(max_examples=500, deadline=None)
def test_hostile_frames_end_in_a_wire_error_or_bounded_memory(pieces: list[bytes], as_host: bool, step: int) -> None:
    host, guest = pair()
    for _ in range(3):
        host.open({"op": "x"})
    to(guest, host)
    target = host if as_host else guest
    stream = b"".join(pieces)
    try:
        for start in range(0, len(stream), step):
            for event in target.receive(stream[start : start + step]):
                if event.kind in (DATA, MESSAGE):
                    target.consumed(event.channel, len(event.payload))
            assert held(target) <= MAX_HELD + 64 * len(pieces)
    except WireError:
        pass


def test_valid_conversation_with_flipped_bytes_never_grows() -> None:
    rng = random.Random(11)
    for _ in range(300):
        host, guest, number = opened()
        for _ in range(rng.randint(1, 8)):
            guest.send_data(number, rng.randbytes(rng.randint(1, 3000)), rng.choice([1, 2]))
            guest.send_message(number, {"n": rng.random()})
        wire = bytearray(guest.take_output())
        for _ in range(rng.randint(1, 4)):
            wire[rng.randrange(len(wire))] ^= 1 << rng.randrange(8)
        try:
            for start in range(0, len(wire), 333):
                host.receive(bytes(wire[start : start + 333]))
                assert host.buffered <= MAX_HELD
                assert not host.output_size
        except WireError:
            pass


def test_reordered_frames_are_refused_or_ignored() -> None:
    rng = random.Random(5)
    for _ in range(200):
        host, guest, number = opened()
        pieces = []
        for _ in range(5):
            guest.send_message(number, {"x": 1})
            pieces.append(guest.take_output())
        guest.send_end(number)
        pieces.append(guest.take_output())
        rng.shuffle(pieces)
        try:
            host.receive(b"".join(pieces))
        except WireError as error:
            assert "after its end" in str(error)
