"""Names: the addresses that stand for them, the questions about them, and what the host is asked."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import pytest

from belljar.errors import Conflict, InvalidInput
from belljar.guest.net import dns as messages
from belljar.guest.net.names import Names
from belljar.vm.link import Channel, Message
from tests.guest.conftest import DEADLINE_S, Guest


class Resolver:
    """A program of the guest that asks, and a host that answers."""

    def __init__(self, guest: Guest, serving: Channel | None) -> None:
        self.guest = guest
        self.serving = serving
        self.port = int((guest.etc / "name-server").read_text())
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.connect(("127.0.0.1", self.port))
        self.sock.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.get_running_loop().sock_recv(self.sock, 4096)

    async def ask(self, name: str, kind: str = "A", **options: Any) -> dns.message.Message:
        question = dns.message.make_query(name, kind, **options)
        await self.send(question.to_wire())
        answer = dns.message.from_wire(await self.receive())
        assert question.is_response(answer), f"this does not answer {name} {kind}: {answer}"
        return answer

    async def next_ask(self) -> dict[str, Any]:
        assert self.serving is not None
        async with asyncio.timeout(DEADLINE_S):
            item = await self.serving.receive()
        assert isinstance(item, Message), f"the guest asked nothing, but sent {item!r}"
        return item.body

    async def answered(self, name: str, verdict: dict[str, Any], **options: Any) -> dns.message.Message:
        """The answer to `name` when the host says `verdict`."""
        assert self.serving is not None
        asking = asyncio.create_task(self.ask(name, **options))
        ask = await self.next_ask()
        assert ask["kind"] == "resolve"
        assert ask["name"] == name.lower()
        await self.serving.message({"ask": ask["ask"], **verdict})
        return await asking


async def open_resolver(guest: Guest) -> Resolver:
    return Resolver(guest, await guest.link.open("net.serve", {}))


def only_address(answer: dns.message.Message) -> str:
    (record,) = answer.answer
    (address,) = record
    return str(address)


# -- the map


def test_name_keeps_its_address_and_address_its_name() -> None:
    names = Names()
    first, second = names.address_of("a.test"), names.address_of("b.test")
    assert first != second
    assert names.address_of("a.test") == first
    assert names.find_name(first) == "a.test"
    assert names.covers(first)
    assert not names.covers("198.20.0.1")
    assert names.find_name("198.18.0.1") is None


def test_forgotten_address_means_nothing_before_it_means_another_name() -> None:
    names = Names(limit=10)
    kept, lost = names.address_of("kept.test"), names.address_of("lost.test")
    seen = {kept, lost}
    for number in range(1000):
        names.find_name(kept)
        seen.add(names.address_of(f"{number}.test"))
    assert names.find_name(kept) == "kept.test"
    assert names.find_name(lost) is None
    assert len(seen) == 1002, "an address was used again although there are many more"


def test_addresses_go_round_and_skip_those_in_use() -> None:
    names = Names(limit=3)
    first = names.address_of("first.test")
    for number in range((1 << 17) + 10):
        names.find_name(first)
        assert names.address_of(f"{number}.test") != first
    assert names.find_name(first) == "first.test"


# -- questions and answers


async def test_resolved_name_gets_an_address_that_leads_back_to_it(guest: Guest) -> None:
    resolver = await open_resolver(guest)
    answer = await resolver.answered("Api.Example.COM", {"verdict": "resolved", "ttl": 77})
    assert answer.rcode() == dns.rcode.NOERROR
    assert answer.answer[0].ttl == 77
    address = only_address(answer)
    assert address.startswith("198.18.")
    assert only_address(await resolver.answered("api.example.com", {"verdict": "resolved", "ttl": 1})) == address
    backwards = await resolver.ask(".".join(reversed(address.split("."))) + ".in-addr.arpa", "PTR")
    assert only_address(backwards) == "api.example.com."


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("refused", dns.rcode.NXDOMAIN), ("nxdomain", dns.rcode.NXDOMAIN), ("failed", dns.rcode.SERVFAIL), ("?", dns.rcode.SERVFAIL)],
)
async def test_verdict_becomes_a_code_and_its_reason_is_told(guest: Guest, verdict: str, code: int) -> None:
    resolver = await open_resolver(guest)
    answer = await resolver.answered("x.test", {"verdict": verdict, "reason": "not on the allow list"}, use_edns=0)
    assert answer.rcode() == code
    assert not answer.answer
    assert [option.text for option in answer.options] == ["not on the allow list"]


@pytest.mark.parametrize("kind", ["AAAA", "MX", "TXT", "SRV", "HTTPS", "ANY", "NS"])
async def test_other_kinds_are_empty_at_once_and_ask_nobody(guest: Guest, kind: str) -> None:
    answer = await Resolver(guest, None).ask("example.com", kind)
    assert answer.rcode() == dns.rcode.NOERROR
    assert not answer.answer


@pytest.mark.parametrize("name", ["localhost", "Sub.LocalHost"])
async def test_localhost_is_this_sandbox(guest: Guest, name: str) -> None:
    assert only_address(await Resolver(guest, None).ask(name)) == "127.0.0.1"


@pytest.mark.parametrize("name", ["1.2.3.4.in-addr.arpa", "x.in-addr.arpa", "999.0.18.198.in-addr.arpa", "1.0.0.ip6.arpa"])
async def test_address_that_was_not_given_out_has_no_name(guest: Guest, name: str) -> None:
    assert (await Resolver(guest, None).ask(name, "PTR")).rcode() == dns.rcode.NXDOMAIN


@pytest.mark.parametrize("name", ["a b.test", "-a.test", "a-.test", "ex\\000ample.test", "b\\195\\188.test", "x.test/y", "."])
async def test_name_that_no_host_can_have_is_never_asked(guest: Guest, name: str) -> None:
    resolver = await open_resolver(guest)
    assert (await resolver.ask(name)).rcode() == dns.rcode.NXDOMAIN
    await resolver.answered("after.test", {"verdict": "resolved", "ttl": 1})


async def test_other_operations_than_questions_are_not_implemented(guest: Guest) -> None:
    update = dns.message.make_query("x.test", "A")
    update.set_opcode(dns.opcode.STATUS)
    resolver = Resolver(guest, None)
    await resolver.send(update.to_wire())
    assert dns.message.from_wire(await resolver.receive()).rcode() == dns.rcode.NOTIMP


async def test_garbage_is_survived(guest: Guest) -> None:
    resolver = await open_resolver(guest)
    whole = dns.message.make_query("some.name.test", "A", use_edns=0).to_wire()
    for data in [
        b"",
        b"x",
        bytes(12),
        bytes(4000),
        whole[:-20],
        whole + whole,
        b"\xff" * 60,
        whole[:12] + b"\xc0\x0c" + whole[14:],
    ]:
        await resolver.send(data)
    for length in range(len(whole)):
        await resolver.send(whole[:length])
    assert (await guest.ask("hello"))["agent_start"] == 1
    fresh = Resolver(guest, resolver.serving)
    asking = asyncio.create_task(fresh.ask("after.test"))
    while (ask := await fresh.next_ask())["name"] != "after.test":
        pass
    assert resolver.serving is not None
    await resolver.serving.message({"ask": ask["ask"], "verdict": "resolved", "ttl": 1})
    assert (await asking).rcode() == dns.rcode.NOERROR


def test_answer_never_answers_an_answer() -> None:
    question = messages.parse_question(dns.message.make_query("x.test", "A").to_wire())
    with pytest.raises(messages.Malformed) as problem:
        messages.parse_question(messages.answer_code(question, messages.OK))
    assert problem.value.number is None


# -- asks


async def test_question_before_there_is_a_host_waits_for_it(guest: Guest) -> None:
    resolver = Resolver(guest, None)
    asking = asyncio.create_task(resolver.ask("early.test"))
    await guest.ask("hello")
    resolver.serving = await guest.link.open("net.serve", {})
    ask = await resolver.next_ask()
    await resolver.serving.message({"ask": ask["ask"], "verdict": "resolved", "ttl": 5})
    assert (await asking).rcode() == dns.rcode.NOERROR


async def test_question_without_any_host_fails_after_a_while(guest: Guest) -> None:
    assert (await Resolver(guest, None).ask("nobody.test")).rcode() == dns.rcode.SERVFAIL


async def test_question_of_a_lost_session_is_asked_again_in_the_next(guest: Guest) -> None:
    resolver = await open_resolver(guest)
    asking = asyncio.create_task(resolver.ask("twice.test"))
    first = await resolver.next_ask()
    await guest.reconnect()
    resolver.serving = await guest.link.open("net.serve", {})
    again = await resolver.next_ask()
    assert again == first
    await resolver.serving.message({"ask": again["ask"], "verdict": "resolved", "ttl": 5})
    assert (await asking).rcode() == dns.rcode.NOERROR


async def test_second_host_takes_over(guest: Guest) -> None:
    first = await open_resolver(guest)
    second = await open_resolver(guest)
    assert first.serving is not None
    with pytest.raises(Conflict):
        await first.serving.receive()
    await second.answered("x.test", {"verdict": "resolved", "ttl": 1})


async def test_too_many_questions_are_refused_at_once_and_the_rest_is_answered(guest: Guest) -> None:
    resolver = await open_resolver(guest)
    for number in range(300):
        await resolver.send(dns.message.make_query(f"n{number}.test", "A", id=number).to_wire())
    refused = [dns.message.from_wire(await resolver.receive()) for _ in range(300 - 256)]
    assert {answer.rcode() for answer in refused} == {dns.rcode.SERVFAIL}
    assert resolver.serving is not None
    for _ in range(256):
        ask = await resolver.next_ask()
        await resolver.serving.message({"ask": ask["ask"], "verdict": "resolved", "ttl": 1})
        assert dns.message.from_wire(await resolver.receive()).rcode() == dns.rcode.NOERROR


@pytest.mark.parametrize("body", [{}, {"ask": "x", "verdict": "resolved"}, {"ask": 1}, {"ask": 1, "verdict": 5}])
async def test_malformed_verdict_is_invalid_input(guest: Guest, body: dict[str, Any]) -> None:
    resolver = await open_resolver(guest)
    assert resolver.serving is not None
    await resolver.serving.message(body)
    with pytest.raises(InvalidInput):
        await resolver.serving.receive()


async def test_verdict_that_nobody_waits_for_is_ignored(guest: Guest) -> None:
    resolver = await open_resolver(guest)
    assert resolver.serving is not None
    await resolver.serving.message({"ask": 999, "verdict": "resolved", "ttl": -5})
    await resolver.answered("x.test", {"verdict": "resolved", "ttl": 1})
