"""Server-sent events, however they are cut on their way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.sdk import streams
from belljar.sdk.errors import Lost
from belljar.sdk.outputs import Tail
from belljar.sdk.streams import EventReader, StreamEvent

STREAM = (
    b': ping\n\nevent: stdout\ndata: {"chunk":"\xe2\x82\xac"}\n\ndata: {"n":1}\n\n'
    b'event: empty\n\n: ping\n\nevent: exit\r\ndata: {"exit_code":0}\r\n\r\n'
)
EVENTS = [StreamEvent("stdout", {"chunk": "€"}), StreamEvent("message", {"n": 1}), StreamEvent("exit", {"exit_code": 0})]


def read(pieces: list[bytes]) -> list[StreamEvent]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[a:b] for a, b in pairwise(places)]) == EVENTS


def test_lines_of_one_event_are_joined() -> None:
    assert read([b"data: one\ndata: two\n\n"]) == [StreamEvent("message", {"text": "one\ntwo"})]
    assert read([b'data: {"a":\ndata: 1}\n\n']) == [StreamEvent("message", {"a": 1})]


def test_what_is_no_json_object_comes_as_text() -> None:
    assert read([b"data: [1]\n\n"]) == [StreamEvent("message", {"text": "[1]"})]
    assert read([b"data: " + b"[" * 100_000 + b"\n\n"])[0].name == "message"


@given(st.binary(max_size=300))
def test_garbage_is_never_a_crash(garbage: bytes) -> None:
    assert isinstance(read([garbage, b"\n\n"]), list)


def test_an_endless_event_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_EVENT_BYTES", 1000)
    with pytest.raises(Lost, match="1000"):
        read([b"data: " + b"x" * 2000])
    with pytest.raises(Lost, match="1000"):
        read([b"data: " + b"x" * 100 + b"\n"] * 20)


def test_of_a_text_without_end_the_end_is_kept() -> None:
    tail = Tail(10)
    for n in range(1000):
        tail.add(f"{n:04d}")
        assert len(tail.text) <= 14
    assert tail.text == "099709980999"
    tail.add("x" * 50)
    assert tail.text == "x" * 50
