"""The log, the limits and what an ask may look like. Nothing is connected here."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.asks import parse_ask
from belljar.egress.limits import Bucket, Usage
from belljar.egress.log import KEPT, MAX_NOTES, Connection, Log
from belljar.egress.policy import Limits


def line(name: str = "a.test", port: int | None = 443) -> Connection:
    return Connection("connect", name, None, port, "refused", "not on the allow list", "mode allow-list")


def test_the_log_is_a_ring_and_the_counters_are_not() -> None:
    log = Log()
    for number in range(KEPT + 50):
        log.refuse(line(f"n{number}.test"))
    assert len(log.lines()) == KEPT and log.lines()[0].name == "n50.test"
    assert log.counters.refused == KEPT + 50


def test_a_connection_from_its_beginning_to_its_end() -> None:
    log, one = Log(), line()
    log.begin(one)
    log.moved(one, incoming=5, outgoing=7)
    assert one.open and log.counters.open == 1 and (one.to_json()["duration_seconds"] or 0) >= 0
    log.end(one, "cut")
    log.end(one, "again")
    assert (one.reason, one.open, log.counters.open, log.counters.bytes_in, log.counters.bytes_out) == ("cut", False, 0, 5, 7)


def test_notes_are_of_what_came_after_the_mark_each_once_and_few() -> None:
    log, told = Log(), list[str]()
    log.on_denied = lambda denied: told.append(denied.target)
    log.refuse(line("before.test"))
    mark = log.mark()
    for _ in range(3):
        log.refuse(line())
    log.refuse(Connection("connect", None, "2606:4700::1", 80, "refused", "no", "server"))
    assert log.denied_since(mark) == [
        "network: a.test:443 was refused: not on the allow list (3 times)",
        "network: [2606:4700::1]:80 was refused: no",
    ]
    assert told[0] == "before.test:443" and len(told) == 5
    for number in range(100):
        log.refuse(line(f"n{number}.test"))
    notes = log.denied_since(mark)
    assert len(notes) == MAX_NOTES and notes[-1].endswith("other connections were refused")
    assert log.denied_since(log.mark()) == []


async def test_a_bucket_lets_a_seconds_worth_through_and_then_slows_down() -> None:
    bucket = Bucket(100_000)
    began = time.monotonic()
    await bucket.take(100_000)
    assert time.monotonic() - began < 0.5
    await bucket.take(50_000)
    assert time.monotonic() - began >= 0.45


async def test_a_bucket_whose_rate_is_lifted_lets_everyone_go() -> None:
    bucket = Bucket(10)
    waiting = [asyncio.create_task(bucket.take(10_000)) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    bucket.change(0)
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    await bucket.take(1 << 40)


def test_a_slow_bucket_moves_small_pieces() -> None:
    assert Bucket(0).piece(131072) == 131072
    assert Bucket(8000).piece(131072) == 1000
    assert Bucket(1).piece(131072) == 1


def test_limits_say_which_of_them_it_was() -> None:
    usage = Usage(Limits(connections=1, bytes=10))
    assert usage.find_refusal() is None
    usage.connections = 1
    assert (usage.find_refusal() or ("",))[0] == "limit connections"
    usage.used_bytes = 10
    assert (usage.find_refusal() or ("",))[0] == "limit bytes" and usage.spent
    usage.change(Limits())
    assert usage.find_refusal() is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["ask", "drop", "kind", "name", "address", "port", "type", "x"]), JSON))
def test_nothing_that_a_guest_says_breaks_the_parser(body: dict[str, object]) -> None:
    ask = parse_ask(body)
    assert ask is None or 0 <= ask.number < 2**53


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_long_texts_are_cut(size: int) -> None:
    ask = parse_ask({"ask": 1, "kind": "connect", "name": "x" * size, "address": "1" * size, "port": 1})
    assert len(repr(ask)) < 1000
