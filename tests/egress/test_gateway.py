"""Asks of a guest over the real wire, answered with real connections to servers on loopback."""

from __future__ import annotations

import asyncio
import gc
import os
import time

import pytest

from belljar.egress import gateway as module
from belljar.egress.gateway import MAX_ASKS
from belljar.egress.outlet import Ground, Outlet
from belljar.egress.policy import parse_policy
from tests.egress.conftest import MakeGuest
from tests.egress.dns_server import DnsServer
from tests.egress.net_guest import Connected, NetGuest
from tests.egress.servers import Servers

DEADLINE_S = 30


async def eventually(done: object, what: str) -> None:
    for _ in range(DEADLINE_S * 50):
        if done():  # type: ignore[operator]
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{what} never came to be")


# -- the happy path -----------------------------------------------------------------------------------------------------------


async def test_a_name_is_resolved_connected_and_written_down(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    port = await servers.echo()
    assert await guest.resolve("here.test") == {"ask": 1, "verdict": "resolved", "ttl": 60}
    connection = await guest.connected("HERE.test.", port)
    await connection.write(b"hello")
    assert await connection.read(5) == b"hello"
    (line,) = outlet.log.lines()
    assert line.open and (line.name, line.address, line.port, line.verdict) == ("here.test", "127.0.0.1", port, "allowed")
    connection.end()
    assert await connection.read_all() == b""
    await eventually(lambda: not line.open, "the end in the log")
    assert (line.bytes_out, line.bytes_in) == (5, 5) and line.duration_seconds is not None
    assert (outlet.log.counters.allowed, outlet.log.counters.open, outlet.log.counters.bytes_in) == (1, 0, 5)


async def test_much_data_goes_through_unharmed_both_ways(guest: NetGuest, servers: Servers) -> None:
    port = await servers.echo()
    connection = await guest.connected("here.test", port)
    sent = os.urandom(8 << 20)
    writing = asyncio.create_task(connection.write(sent))
    assert await connection.read(len(sent)) == sent
    await writing


async def test_a_half_closed_connection_still_carries_the_answer(guest: NetGuest, servers: Servers) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(len(await reader.read())).encode())
        await writer.drain()

    connection = await guest.connected("here.test", await servers.start(count))
    await connection.write(b"x" * 1000)
    connection.end()
    assert await connection.read_all() == b"1000"
    assert connection.channel.ended.is_set() and not connection.channel.was_reset.is_set()


async def test_a_server_that_ends_first_is_still_written_to(guest: NetGuest, servers: Servers) -> None:
    got = asyncio.get_running_loop().create_future()

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        got.set_result(await reader.read())

    connection = await guest.connected("here.test", await servers.start(end_first))
    assert await connection.read_all() == b""
    await connection.write(b"late")
    connection.end()
    assert await asyncio.wait_for(got, DEADLINE_S) == b"late"


async def test_resets_pass_both_ways(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    lost = asyncio.Event()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"r":
            writer.transport.abort()
            return
        try:
            await reader.read()
        except ConnectionResetError:
            lost.set()

    port = await servers.start(reset)
    connection = await guest.connected("here.test", port)
    await connection.write(b"r")
    await connection.channel.news.wait()
    async with asyncio.timeout(DEADLINE_S):
        await connection.read_all()
    second = await guest.connected("here.test", port)
    await second.write(b"x")
    await eventually(lambda: outlet.log.lines()[-1].bytes_out == 1, "the first byte")
    second.channel.reset("cancelled", "the program is gone")
    await asyncio.wait_for(lost.wait(), DEADLINE_S)


async def test_a_slow_guest_slows_the_server_down(
    guest: NetGuest, outlet: Outlet, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    monkeypatch.setattr(guest.scripted.mux, "consumed", lambda number, size: None)  # never grants credit
    await guest.connected("here.test", await servers.start(flood))
    (line,) = outlet.log.lines()
    await eventually(lambda: line.bytes_in > 100_000, "the first window")
    before = -1
    while before != line.bytes_in:
        before = line.bytes_in
        await asyncio.sleep(0.2)
    assert line.bytes_in < 2 << 20, "more was read than the guest could take"


async def test_a_literal_address(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    port = await servers.echo()
    connection = await guest.connected(None, port, "127.0.0.1")
    await connection.write(b"x")
    assert await connection.read(1) == b"x"
    assert outlet.log.lines()[0].name is None


# -- refusals -----------------------------------------------------------------------------------------------------------------


async def test_off_refuses_everything_and_looks_nothing_up(guest: NetGuest, outlet: Outlet, dns: DnsServer) -> None:
    outlet.set_policy(parse_policy("off"))
    assert (await guest.resolve("here.test"))["verdict"] == "refused"
    assert (await guest.refused("here.test", 80))["reason"] == "the network of this sandbox is off"
    assert (await guest.refused(None, 80, "1.1.1.1"))["verdict"] == "refused"
    assert not dns.asked
    assert [line.rule for line in outlet.log.lines()] == ["mode off"] * 3


async def test_a_name_that_is_not_on_the_list_is_never_looked_up(
    guest: NetGuest, outlet: Outlet, dns: DnsServer, servers: Servers
) -> None:
    port = await servers.echo()
    outlet.set_policy(parse_policy([f"here.test:{port}", "1.2.3.4"]))
    assert (await guest.resolve("here.test"))["verdict"] == "resolved"
    asked = len(dns.asked)
    assert (await guest.resolve("data-to-leak.evil.test"))["reason"] == "not on the allow list"
    assert (await guest.refused("evil.test", 443))["reason"] == "not on the allow list"
    assert "port 1" in (await guest.refused("here.test", 1))["reason"]
    assert len(dns.asked) == asked
    assert isinstance(await guest.connect("here.test", port), Connected)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.0.1", "169.254.169.254", "127.0.0.2", "0.0.0.0", "100.64.0.1", "224.0.0.1"]
)
async def test_names_that_lead_to_private_addresses_do_not_help(
    guest: NetGuest, outlet: Outlet, dns: DnsServer, address: str
) -> None:
    dns.names["rebind.test"] = [("A", address)]
    answer = await guest.resolve("rebind.test")
    assert answer["verdict"] == "refused" and address in answer["reason"]
    assert (await guest.refused("rebind.test", 80))["verdict"] == "refused"
    assert outlet.log.counters.refused == 2 and outlet.log.lines()[0].rule == "server"


async def test_only_the_permitted_addresses_of_a_name_are_used(
    guest: NetGuest, outlet: Outlet, dns: DnsServer, servers: Servers
) -> None:
    port = await servers.echo()
    dns.names["mixed.test"] = [("A", "10.0.0.1"), ("A", "127.0.0.1"), ("A", "169.254.169.254")]
    await guest.connected("mixed.test", port)
    assert outlet.log.lines()[0].address == "127.0.0.1"


async def test_a_name_that_changes_its_mind_is_judged_again(guest: NetGuest, dns: DnsServer, servers: Servers) -> None:
    port, answers = await servers.echo(), iter(["127.0.0.1", "127.0.0.1", "127.0.0.3", "10.0.0.1"])
    dns.ttl = 0
    dns.names["rebind.test"] = lambda: [("A", next(answers))]
    assert (await guest.resolve("rebind.test"))["verdict"] == "resolved"
    await guest.connected("rebind.test", port)
    assert "127.0.0.3" in (await guest.refused("rebind.test", port))["reason"]
    assert "10.0.0.1" in (await guest.refused("rebind.test", port))["reason"]


async def test_an_alias_of_a_denied_name_is_denied(guest: NetGuest, outlet: Outlet, dns: DnsServer) -> None:
    dns.names |= {"good.test": [("CNAME", "x.evil.test")], "x.evil.test": [("A", "127.0.0.1")]}
    outlet.set_policy(parse_policy({"mode": "open", "deny": ["*.evil.test"]}))
    assert (await guest.resolve("good.test"))["verdict"] == "refused"
    assert "x.evil.test" in (await guest.refused("good.test", 80))["reason"]


async def test_a_denied_network_holds_for_names_too(guest: NetGuest, outlet: Outlet) -> None:
    outlet.set_policy(parse_policy({"mode": "open", "deny": ["127.0.0.0/8"]}))
    assert (await guest.refused("here.test", 80))["reason"] == "the rule '127.0.0.0/8' denies 127.0.0.1"
    assert (await guest.refused(None, 80, "127.0.0.1"))["verdict"] == "refused"


@pytest.mark.parametrize(
    "address", ["::ffff:127.0.0.1", "::1", "64:ff9b::7f00:1", "2130706433", "0177.0.0.1", "127.1", "", "x" * 9999, "198.18.0.9"]
)
async def test_odd_literal_addresses(guest: NetGuest, address: str) -> None:
    assert (await guest.refused(None, 80, address))["verdict"] == "refused"


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "127.0.0.1", "127.1", "0x7f000001", "x" * 64, "a." * 200, "bücher.test", "a b", "a\0b", "*"]
)
async def test_odd_names(guest: NetGuest, dns: DnsServer, name: str) -> None:
    assert (await guest.resolve(name))["verdict"] == "refused"
    assert (await guest.refused(name, 80))["verdict"] == "refused"
    assert not dns.asked


async def test_what_cannot_be_reached_says_why(guest: NetGuest, outlet: Outlet, dns: DnsServer, servers: Servers) -> None:
    port = await servers.echo()
    await servers.stop()
    assert (await guest.refused("here.test", port))["reason"] == "the server refused the connection"
    assert (await guest.resolve("missing.test"))["verdict"] == "nxdomain"
    assert (await guest.refused("missing.test", 80))["verdict"] == "nxdomain"
    assert outlet.log.counters.failed == 3 and outlet.log.counters.refused == 0


async def test_a_refusal_takes_no_time_to_speak_of(guest: NetGuest, outlet: Outlet) -> None:
    outlet.set_policy(parse_policy(["here.test"]))
    began = time.monotonic()
    for number in range(200):
        assert (await guest.refused(f"n{number}.test", 443))["verdict"] == "refused"
    assert len(outlet.log.lines()) == 200
    assert time.monotonic() - began < DEADLINE_S  # two hundred, each of which a timeout would have made seconds


# -- policy at run time -------------------------------------------------------------------------------------------------------


async def test_a_new_policy_cuts_what_it_no_longer_allows(
    guest: NetGuest, outlet: Outlet, dns: DnsServer, servers: Servers
) -> None:
    port = await servers.echo()
    dns.names["kept.test"] = [("A", "127.0.0.1")]
    cut, kept = await guest.connected("here.test", port), await guest.connected("kept.test", port)
    outlet.set_policy(parse_policy(["kept.test"]))
    await cut.until_reset()
    await kept.write(b"still")
    assert await kept.read(5) == b"still"
    first, second = outlet.log.lines()
    assert not first.open and "policy was changed" in first.reason and second.open
    outlet.set_policy(parse_policy({"mode": "open", "deny": ["127.0.0.0/8"]}))
    await kept.until_reset()


async def test_a_policy_that_changes_during_the_dial_counts(
    guest: NetGuest, outlet: Outlet, dns: DnsServer, servers: Servers
) -> None:
    port = await servers.echo()

    def answer() -> list[tuple[str, str]]:
        outlet.set_policy(parse_policy("off"))
        return [("A", "127.0.0.1")]

    dns.names["late.test"] = answer
    assert (await guest.refused("late.test", port))["verdict"] == "refused"
    assert not outlet.open


# -- limits and floods --------------------------------------------------------------------------------------------------------


async def test_connections_at_a_time(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    port = await servers.echo()
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"connections": 2}}))
    first, _ = await guest.connected("here.test", port), await guest.connected("here.test", port)
    assert "2 connections" in (await guest.refused("here.test", port))["reason"]
    assert outlet.log.lines()[-1].rule == "limit connections"
    first.end()
    await first.read_all()
    await eventually(lambda: outlet.usage.connections == 1, "the release of the first")
    await guest.connected("here.test", port)


async def test_bytes_in_all(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    port = await servers.echo()
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"bytes": 1000}}))
    connection = await guest.connected("here.test", port)
    for _ in range(200):
        if connection.over:
            break
        await connection.write(bytes(100))
        await asyncio.sleep(0.01)
    await connection.until_reset()
    assert outlet.usage.used_bytes <= 1200
    assert "1000 bytes" in (await guest.refused("here.test", port))["reason"]
    outlet.set_policy(parse_policy("open"))
    await guest.connected("here.test", port)


async def test_bytes_a_second(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    port = await servers.echo()
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"bytes_per_second": 100_000}}))
    connection = await guest.connected("here.test", port)
    began = time.monotonic()
    writing = asyncio.create_task(connection.write(bytes(250_000)))
    assert len(await connection.read(250_000)) == 250_000
    await writing
    # The first second's worth is free, the rest takes a second per 100 kB.
    assert time.monotonic() - began >= 1.4
    outlet.set_policy(parse_policy("open"))


async def test_a_limit_of_the_server_cannot_be_lifted_by_a_policy(ground: Ground) -> None:
    outlet = Outlet(ground, parse_policy({"mode": "open", "limits": {"connections": 500}}))
    assert outlet.usage.limits.connections == 256


async def test_a_flood_of_asks_makes_no_flood_here(guest: NetGuest, outlet: Outlet, dns: DnsServer) -> None:
    dns.silent = True  # so that none of them ends by itself
    numbers = [guest.ask(kind="resolve", name=f"n{number}.test", type="A") for number in range(5000)]
    for number in numbers[MAX_ASKS:]:
        answer = await guest.outcome(number)
        assert isinstance(answer, dict) and "at once" in answer["reason"]
    asking = [task for task in asyncio.all_tasks() if task.get_name().startswith("ask ")]
    assert len(asking) <= MAX_ASKS
    for number in numbers[:MAX_ASKS]:
        guest.say({"drop": number})
    await eventually(
        lambda: not any(task.get_name().startswith("ask ") for task in asyncio.all_tasks()), "the end of what was dropped"
    )


async def test_a_guest_that_asks_and_never_reads_is_not_read(
    guest: NetGuest, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlet.set_policy(parse_policy("off"))
    monkeypatch.setattr(guest.scripted.mux, "consumed", lambda number, size: None)
    for _ in range(20_000):
        guest.ask(kind="connect", name="x" * 200 + ".test", address="1.1.1.1", port=80)
        await asyncio.sleep(0)
    refused = outlet.log.counters.refused
    await asyncio.sleep(0.3)
    assert outlet.log.counters.refused == refused < 20_000
    assert len(outlet.log.lines()) <= 1000


async def test_answers_that_nobody_reads_do_not_pile_up(guest: NetGuest, outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await guest.resolve("here.test"))["verdict"] == "resolved"  # from now on it is known, and answered at once
    monkeypatch.setattr(guest.scripted.mux, "consumed", lambda number, size: None)
    for _ in range(20_000):
        guest.ask(kind="resolve", name="here.test", type="A")
        await asyncio.sleep(0)
    await asyncio.sleep(0.3)
    assert outlet.log.counters.resolved < 20_000
    assert sum(task.get_name().startswith("ask ") for task in asyncio.all_tasks()) <= MAX_ASKS


@pytest.mark.parametrize(
    "body",
    [{}, {"ask": "1"}, {"ask": -1}, {"ask": True}, {"ask": 2**60}, {"drop": 99}, {"drop": None}, {"ask": None, "kind": "connect"}],
)
async def test_what_cannot_be_answered_is_ignored(guest: NetGuest, body: dict[str, object]) -> None:
    guest.say(body)
    assert (await guest.resolve("here.test"))["verdict"] == "resolved"


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "listen"},
        {"kind": "connect"},
        {"kind": "connect", "name": 7, "address": "1.1.1.1", "port": 1},
        {"kind": "connect", "name": None, "address": "1.1.1.1", "port": 0},
        {"kind": "connect", "name": None, "address": "1.1.1.1", "port": 65536},
        {"kind": "connect", "name": None, "address": "1.1.1.1", "port": True},
        {"kind": "connect", "name": None, "address": None, "port": 80},
        {"kind": "resolve", "name": None, "type": "A"},
        {"kind": "resolve", "name": "a.test", "type": "TXT"},
    ],
)
async def test_a_malformed_ask_is_answered(guest: NetGuest, body: dict[str, object]) -> None:
    answer = await guest.outcome(guest.ask(**body))
    assert isinstance(answer, dict) and answer["verdict"] == "failed"


async def test_a_number_that_is_used_twice_changes_nothing(guest: NetGuest, dns: DnsServer) -> None:
    dns.silent = True
    number = guest.ask(kind="resolve", name="here.test", type="A")
    guest.say({"ask": number, "kind": "connect", "name": "other.test", "address": "1.1.1.1", "port": 80})
    guest.say({"drop": number})
    dns.silent = False
    assert (await guest.resolve("here.test"))["verdict"] == "resolved"


# -- sessions -----------------------------------------------------------------------------------------------------------------


async def test_the_end_of_a_session_closes_its_connections(serve: MakeGuest, outlet: Outlet, servers: Servers) -> None:
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        gone.set()

    first = await serve(outlet)
    await first.connected("here.test", await servers.start(wait))
    first.stop()  # the machine has ended
    await asyncio.wait_for(gone.wait(), DEADLINE_S)
    await eventually(lambda: not outlet.open, "the end of the connection")
    second = await serve(outlet)
    await second.connected("here.test", await servers.echo())
    assert [line.open for line in outlet.log.lines()] == [False, True]


async def test_a_channel_that_the_guest_ends_is_opened_again(guest: NetGuest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    guest.serving.clear()
    assert guest.channel is not None
    guest.channel.end()
    await asyncio.wait_for(guest.serving.wait(), DEADLINE_S)
    assert (await guest.resolve("here.test"))["verdict"] == "resolved"


async def test_an_agent_without_a_network_is_left_alone(outlet: Outlet) -> None:
    old = NetGuest()
    old.scripted.script = {}
    link = await old.start()
    await asyncio.wait_for(module.Gateway(link, outlet).serve(), DEADLINE_S)
    await link.aclose()
    old.stop()


async def test_many_connections_leave_nothing_behind(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    port = await servers.echo()
    for _ in range(5):
        opened = await asyncio.gather(*(guest.connected("here.test", port) for _ in range(50)))
        for connection in opened:
            connection.end()
        await asyncio.gather(*(connection.read_all() for connection in opened))
    await eventually(lambda: not outlet.open and not outlet.usage.connections, "the end of all")
    gc.collect()
    assert outlet.log.counters.allowed == 250 and outlet.log.counters.open == 0
