"""The host's end of the wire, against a peer that is a bare mux or plain bytes: what a guest can do to it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import (
    AgentLost,
    AgentProtocol,
    Conflict,
    DeadlineExceeded,
    FileMissing,
    InvalidInput,
    SandboxBusy,
    SandboxError,
    SandboxGone,
)
from belljar.vm.link import Channel, Data, Link, Message
from belljar.wire.frames import (
    ANNOUNCE,
    DATA,
    MAX_PAYLOAD,
    MESSAGE,
    OPEN,
    PING,
    RESET,
    Event,
    decode_json,
    encode_header,
    encode_mark,
)
from belljar.wire.mux import WINDOW, Mux

DEADLINE_S = 30.0


class Peer:
    """A guest that does what the test says: answers requests through `on_open`, and sends any bytes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.mux = Mux(host=False)
        self.events: list[Event] = []
        self.on_open: Callable[[int, dict[str, Any]], None] = lambda number, request: None
        self.paused = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._on_readable)

    def _on_readable(self) -> None:
        if self.paused:
            self._loop.remove_reader(self.sock)
            return
        data = self.sock.recv(1 << 20)
        if not data:
            self._loop.remove_reader(self.sock)
            return
        for event in self.mux.receive(data):
            self.events.append(event)
            if event.kind == OPEN:
                self.on_open(event.channel, decode_json(event.payload))
        self.flush()

    def flush(self) -> None:
        self.raw(self.mux.take_output())

    def raw(self, data: bytes) -> None:
        while data:
            try:
                data = data[self.sock.send(data) :]
            except (BlockingIOError, BrokenPipeError):  # the host does not read, or has hung up
                return

    def close(self) -> None:
        if self.sock.fileno() < 0:
            return
        self._loop.remove_reader(self.sock)
        self.sock.close()

    async def seen(self, kind: int) -> Event:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for event in self.events:
                    if event.kind == kind:
                        self.events.remove(event)
                        return event
                await asyncio.sleep(0.005)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Link, Peer]]:
    ours, theirs = socket.socketpair()
    peer = Peer(theirs)
    link = await Link.over(ours, DEADLINE_S)
    yield link, peer
    await link.aclose()
    peer.close()


def answering(peer: Peer, *bodies: dict[str, Any]) -> None:
    def on_open(number: int, request: dict[str, Any]) -> None:
        for body in bodies:
            peer.mux.send_message(number, body)
        peer.mux.send_end(number)

    peer.on_open = on_open


async def opened(link: Link, peer: Peer) -> tuple[Channel, int]:
    channel = await link.open("x", {})
    return channel, (await peer.seen(OPEN)).channel


# -- connecting


async def test_connect_works_through_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/wire")
        os.close(here)
        listener.listen(1)
        connecting = asyncio.create_task(Link.connect(folder / "wire", DEADLINE_S))
        await asyncio.sleep(0)
        peer = Peer(listener.accept()[0])
        link = await connecting
    await link.aclose()
    peer.close()


@pytest.mark.parametrize("name", ["missing", "file"])
async def test_connect_to_nobody_is_sandbox_gone(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxGone):
        await Link.connect(tmp_path / name, DEADLINE_S)


async def test_crowded_socket_is_busy(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "wire"))
        listener.listen(0)
        links = []
        with pytest.raises(SandboxBusy):
            for _ in range(10):
                links.append(await Link.dial(tmp_path / "wire"))
        for link in links:
            await link.aclose()


async def test_silent_guest_is_a_deadline_and_leaves_no_socket_behind() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(DeadlineExceeded):
        await Link.over(ours, 0.05)
    assert ours.fileno() == -1


async def test_requests_may_precede_the_answer_to_hello() -> None:
    ours, theirs = socket.socketpair()
    link = Link(ours)
    asking = asyncio.create_task(link.request("x", {}, DEADLINE_S))
    await asyncio.sleep(0.01)
    peer = Peer(theirs)
    answering(peer, {"ok": True})
    assert await asking == {"ok": True}
    await link.ready(DEADLINE_S)
    await link.aclose()
    peer.close()


async def test_old_traffic_before_the_answer_is_ignored() -> None:
    ours, theirs = socket.socketpair()
    theirs.send(encode_header(DATA, 77, 5000, 1) + bytes(3000) + encode_mark(ANNOUNCE, b"0" * 16) + os.urandom(20_000))
    peer = Peer(theirs)
    link = await Link.over(ours, DEADLINE_S)
    answering(peer, {"ok": True})
    assert await link.request("x", {}, DEADLINE_S) == {"ok": True}
    assert link.restarts == 0
    await link.aclose()
    peer.close()


# -- requests


async def test_request_gets_one_answer(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    answering(peer, {"answer": 42})
    assert await link.request("x", {"a": 1}, DEADLINE_S) == {"answer": 42}
    assert decode_json((await peer.seen(OPEN)).payload) == {"op": "x", "a": 1}
    assert link._channels == {}


async def test_many_requests_at_once(ends: tuple[Link, Peer]) -> None:
    link, peer = ends

    def on_open(number: int, request: dict[str, Any]) -> None:
        peer.mux.send_message(number, {"echo": request["n"]})
        peer.mux.send_end(number)

    peer.on_open = on_open
    answers = await asyncio.gather(*(link.request("x", {"n": n}, DEADLINE_S) for n in range(500)))
    assert [answer["echo"] for answer in answers] == list(range(500))


async def test_reset_becomes_its_error(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    peer.on_open = lambda number, request: peer.mux.reset(number, "file_not_found", "no such", {"path": "/x"})
    with pytest.raises(FileMissing, match="no such") as caught:
        await link.request("x", {}, DEADLINE_S)
    assert caught.value.details == {"path": "/x"}


@pytest.mark.parametrize("details", [{"self": 1, "message": 2, "x": 3}, {"code": 5}])
async def test_reset_with_hostile_details_is_still_an_error(ends: tuple[Link, Peer], details: dict[str, Any]) -> None:
    link, peer = ends
    peer.on_open = lambda number, request: peer.mux.reset(number, "made_up", "m", details)
    with pytest.raises(SandboxError):
        await link.request("x", {}, DEADLINE_S)


async def test_request_without_answer_is_a_deadline_and_is_reset(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    with pytest.raises(DeadlineExceeded):
        await link.request("x", {}, 0.05)
    await peer.seen(RESET)
    answering(peer, {})
    assert await link.request("x", {}, DEADLINE_S) == {}


async def test_cancelled_request_does_not_break_the_link(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    task = asyncio.create_task(link.request("x", {}, DEADLINE_S))
    await peer.seen(OPEN)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await peer.seen(RESET)
    answering(peer, {})
    assert await link.request("x", {}, DEADLINE_S) == {}


@pytest.mark.parametrize("bodies", [[], [{}, {}]])
async def test_any_number_of_answers_but_one_is_a_protocol_error(ends: tuple[Link, Peer], bodies: list[dict[str, Any]]) -> None:
    link, peer = ends
    answering(peer, *bodies)
    with pytest.raises(AgentProtocol):
        await link.request("x", {}, DEADLINE_S)


@pytest.mark.parametrize("params", [{"x": "y" * MAX_PAYLOAD}, {"x": object()}])
async def test_request_that_cannot_travel_is_invalid_input(ends: tuple[Link, Peer], params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await ends[0].request("x", params, DEADLINE_S)


async def test_ping_is_answered_or_a_deadline(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    await link.ping(DEADLINE_S)
    peer.paused = True
    with pytest.raises(DeadlineExceeded):
        await link.ping(0.05)


# -- channels


async def test_channel_yields_data_and_messages_until_the_end(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, number = await opened(link, peer)
    peer.mux.send_message(number, {"a": 1})
    peer.mux.send_data(number, b"out", 1)
    peer.mux.send_data(number, b"err", 2)
    peer.mux.send_end(number)
    peer.flush()
    assert [item async for item in channel] == [Message({"a": 1}), Data(1, b"out"), Data(2, b"err")]


async def test_large_data_flows_both_ways_with_credit(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, number = await opened(link, peer)
    sending = asyncio.create_task(channel.send(bytes(5_000_000)))
    received = 0
    while received < 5_000_000:
        event = await peer.seen(DATA)
        received += len(event.payload)
        peer.mux.consumed(number, len(event.payload))
        peer.flush()
    await sending


async def test_sender_waits_for_credit_and_holds_no_more_than_the_window(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, _ = await opened(link, peer)
    sending = asyncio.create_task(channel.send(bytes(1_000_000)))
    await asyncio.sleep(0.1)
    assert not sending.done()
    assert sum(len(event.payload) for event in peer.events) <= WINDOW
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def test_guest_that_never_reads_does_not_make_the_host_hoard(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    peer.paused = True
    channels = [asyncio.create_task(link.open("x", {"pad": "y" * 50_000})) for _ in range(100)]
    await asyncio.sleep(0.2)
    assert link._mux.output_size + len(link._pending) < 2_000_000
    assert not all(task.done() for task in channels)
    for task in channels:
        task.cancel()
    await asyncio.gather(*channels, return_exceptions=True)


async def test_unread_channel_holds_one_window_at_most(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, number = await opened(link, peer)
    for _ in range(50):
        peer.mux.send_data(number, bytes(50_000), 1)
        peer.flush()
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert sum(len(event.payload) for event in channel._inbox) <= WINDOW


async def test_closing_an_unfinished_channel_resets_it(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    async with await link.open("x", {}):
        pass
    assert (await peer.seen(RESET)).channel == 1
    assert link._channels == {}


async def test_closed_channel_refuses_to_send(ends: tuple[Link, Peer]) -> None:
    channel = await ends[0].open("x", {})
    await channel.aclose()
    with pytest.raises(Conflict):
        await channel.send(b"x")


async def test_answers_received_before_a_reset_are_handed_out_first(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, number = await opened(link, peer)
    peer.mux.send_data(number, b"last words", 1)
    peer.mux.reset(number, "internal", "boom")
    peer.flush()
    assert await channel.receive() == Data(1, b"last words")
    with pytest.raises(Exception, match="boom"):
        await channel.receive()


# -- losing the link


async def test_end_of_file_fails_every_waiter_at_once(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, _ = await opened(link, peer)
    waiting = [asyncio.create_task(channel.receive()), asyncio.create_task(link.request("y", {}, DEADLINE_S))]
    await asyncio.sleep(0.01)
    peer.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, SandboxGone) for result in results)
    assert isinstance(await link.lost, SandboxGone)
    with pytest.raises(SandboxGone):
        await link.open("z", {})


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" + os.urandom(1000),
        encode_header(DATA, 99, 1, 1) + b"x",
        encode_header(OPEN, 5, 2) + b"{}",
        encode_header(PING, 0, 8) + bytes(8),
        encode_header(RESET, 1, 2) + b"{}",
        encode_header(RESET, 1, 2) + b"[]",
        (encode_header(DATA, 1, MAX_PAYLOAD, 1) + bytes(MAX_PAYLOAD)) * 3,
    ],
    ids=["random", "unopened", "open", "ping", "reset-empty", "reset-list", "overrun"],
)
async def test_hostile_bytes_end_the_session_with_a_typed_error(ends: tuple[Link, Peer], garbage: bytes) -> None:
    link, peer = ends
    channel, _ = await opened(link, peer)
    del channel  # nobody reads it
    for start in range(0, len(garbage), 50_000):
        peer.raw(garbage[start : start + 50_000])
        await asyncio.sleep(0.01)
    assert isinstance(await asyncio.wait_for(link.lost, DEADLINE_S), AgentProtocol)


async def test_malformed_message_ends_the_session(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, number = await opened(link, peer)
    peer.raw(encode_header(MESSAGE, number, 5) + b"[" * 5)
    with pytest.raises(AgentProtocol):
        await channel.receive()
    assert link.lost.done()


async def test_restarted_agent_fails_channels_and_the_link_goes_on(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    channel, _ = await opened(link, peer)
    peer.mux = Mux(host=False)
    peer.mux.announce()
    peer.flush()
    with pytest.raises(AgentLost):
        await channel.receive()
    answering(peer, {"ok": 1})
    assert await link.request("x", {}, DEADLINE_S) == {"ok": 1}
    await link.ready(DEADLINE_S)
    assert link.restarts == 1
    await channel.aclose()  # of the old session: must not touch the new one
    assert await link.request("x", {}, DEADLINE_S) == {"ok": 1}


async def test_agent_that_restarts_over_and_over_is_lost(ends: tuple[Link, Peer]) -> None:
    link, peer = ends
    peer.paused = True
    for _ in range(20):
        peer.raw(encode_mark(ANNOUNCE, b"0" * 16))
        await asyncio.sleep(0.005)
    assert isinstance(await asyncio.wait_for(link.lost, DEADLINE_S), AgentLost)


async def test_closing_the_link_fails_its_channels(ends: tuple[Link, Peer]) -> None:
    link, _ = ends
    channel = await link.open("x", {})
    await link.aclose()
    await link.aclose()
    with pytest.raises(SandboxGone):
        await channel.receive()
