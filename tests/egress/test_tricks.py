"""Tricks of someone who speaks to the host in the agent's place: odd names, chains of names, limits that must be exact."""

from __future__ import annotations

import asyncio
import resource

import pytest

from belljar.egress.limits import SOCKETS_OF_DESCRIPTORS, Room, find_room
from belljar.egress.outlet import Ground, Outlet
from belljar.egress.policy import parse_policy
from tests.egress.conftest import MakeGuest
from tests.egress.dns_server import DnsServer
from tests.egress.net_guest import Connected, NetGuest
from tests.egress.servers import Servers
from tests.egress.test_gateway import DEADLINE_S, eventually

# -- names --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "here.test\0.good.test",
        "here.test%00.good.test",
        "here.test.\0",
        "here.test..",
        "good.test/../here.test",
        "good.test#here.test",
        "good.test@here.test",
        "here。test",
        "HERE\u2024test",
        "ｈere.test",
        "\ud800here.test",
        "\x1b[2Jhere.test\r\n",
        "good.test:80",
        "[::1]",
        "0x7f.1",
        "0177.0.0.01",
        "127.0.0.1.",
        ("a" * 63 + ".") * 3 + "a" * 62,  # one more than a name can have
    ],
)
async def test_what_is_no_name_is_asked_of_nobody_and_shown_harmlessly(
    guest: NetGuest, outlet: Outlet, dns: DnsServer, name: str
) -> None:
    outlet.set_policy(parse_policy(["good.test", "*.good.test", "here.test"]))
    assert (await guest.resolve(name))["verdict"] == "refused"
    assert (await guest.refused(name, 80))["verdict"] == "refused"
    assert not dns.asked
    for line in outlet.log.lines():
        assert line.note.isascii() and line.note.isprintable(), "the log would write to the reader's terminal"


async def test_the_longest_name_is_a_name(guest: NetGuest, dns: DnsServer) -> None:
    name = ("a" * 63 + ".") * 3 + "a" * 56 + ".test"
    assert len(name) == 253
    dns.names[name] = [("A", "127.0.0.1")]
    assert (await guest.resolve(name.upper() + "."))["verdict"] == "resolved"


async def test_a_name_that_only_looks_like_an_allowed_one(guest: NetGuest, outlet: Outlet, dns: DnsServer) -> None:
    outlet.set_policy(parse_policy(["apple.test", "*.bücher.test"]))
    dns.names |= {name: [("A", "127.0.0.1")] for name in ("xn--80ak6aa92e.test", "a.xn--bcher-kva.test", "a.bucher.test")}
    assert (await guest.resolve("xn--80ak6aa92e.test"))["reason"] == "not on the allow list"  # Cyrillic letters that look alike
    assert (await guest.resolve("a.bucher.test"))["reason"] == "not on the allow list"
    assert (await guest.resolve("a.XN--BCHER-KVA.test"))["verdict"] == "resolved"


async def test_chains_of_aliases(guest: NetGuest, outlet: Outlet, dns: DnsServer) -> None:
    """However long the way, its end is what counts; one without an end is no name."""
    dns.ttl = 0
    for number in range(10):
        dns.names[f"c{number}.test"] = [("CNAME", f"c{number + 1}.test")]
    dns.names["c10.test"] = [("A", "169.254.169.254")]
    assert "169.254.169.254" in (await guest.resolve("c0.test"))["reason"]
    assert "169.254.169.254" in (await guest.refused("c0.test", 80))["reason"]
    dns.names["c10.test"] = [("CNAME", "localhost")]
    assert (await guest.refused("c0.test", 80))["verdict"] == "nxdomain", "this host's own names were looked at"
    dns.names |= {"ring.test": [("CNAME", "other.test")], "other.test": "SERVFAIL"}
    assert (await guest.resolve("ring.test"))["verdict"] == "failed"
    # A deny rule holds for each name on the way.
    dns.names |= {"good.test": [("CNAME", "EVIL.test")], "evil.test": [("CNAME", "end.test")], "end.test": [("A", "127.0.0.1")]}
    outlet.set_policy(parse_policy({"mode": "open", "deny": ["evil.test"]}))
    assert "evil.test" in (await guest.refused("good.test", 80))["reason"]


async def test_an_answer_with_many_addresses_is_no_way_around(guest: NetGuest, dns: DnsServer) -> None:
    dns.names["crowd.test"] = [("A", f"10.0.{number // 256}.{number % 256}") for number in range(300)]
    assert (await guest.refused("crowd.test", 80))["verdict"] == "refused"


@pytest.mark.parametrize("port", [0, -1, 65536, 1.5, True, "80", None])
async def test_what_is_no_port_is_answered_and_dialled_nowhere(guest: NetGuest, outlet: Outlet, port: object) -> None:
    outcome = await guest.outcome(guest.ask(kind="connect", name=None, address="127.0.0.1", port=port))
    assert isinstance(outcome, dict) and outcome["verdict"] == "failed"
    assert not outlet.usage.connections and not outlet.log.counters.allowed


# -- bytes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 1000, 200_001])
async def test_a_limit_of_bytes_is_exact_inward(guest: NetGuest, outlet: Outlet, servers: Servers, limit: int) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    port = await servers.start(pour)
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"bytes": limit}}))
    connection = await guest.connected("here.test", port)
    assert await connection.read_all() == b"x" * limit
    await connection.until_reset()
    await eventually(lambda: not outlet.open, "the end of the connection")
    assert outlet.usage.used_bytes == limit == outlet.log.counters.bytes_in
    assert outlet.log.lines()[-1].reason == "the sandbox has used the bytes that it may move"


async def test_a_limit_of_bytes_is_exact_outward_and_over_all_connections(
    guest: NetGuest, outlet: Outlet, servers: Servers
) -> None:
    got = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        while data := await reader.read(65536):
            got += len(data)

    port = await servers.start(take)
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"bytes": 100_000}}))
    busy = [await guest.connected("here.test", port) for _ in range(4)]
    silent = await guest.connected("here.test", port)

    async def send(connection: Connected) -> None:
        while not connection.over:
            await connection.write(bytes(7_777))
            await asyncio.sleep(0)

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(send(connection) for connection in busy))
        await silent.until_reset()  # although it said nothing
    await eventually(lambda: got == 100_000, "the last byte")
    assert outlet.usage.used_bytes == 100_000 == outlet.log.counters.bytes_out


async def test_a_limit_below_what_was_moved_already_cuts_at_once(guest: NetGuest, outlet: Outlet, servers: Servers) -> None:
    connection = await guest.connected("here.test", await servers.echo())
    await connection.write(bytes(1000))
    assert len(await connection.read(1000)) == 1000
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"bytes": 2001}}))
    await connection.write(b"1")
    await connection.until_reset()  # the answer to that would be one byte too many
    outlet.set_policy(parse_policy("open"))
    other = await guest.connected("here.test", await servers.echo())
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"bytes": 10}}))
    await other.until_reset()


# -- connections that are never finished ----------------------------------------------------------------------------------------


async def test_servers_that_never_speak_hold_no_more_than_their_share(
    guest: NetGuest, outlet: Outlet, servers: Servers, dns: DnsServer
) -> None:
    """Connections that are open and silent are counted as long as they are, and given back at once when they go."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    port = await servers.start(silent)
    outlet.set_policy(parse_policy({"mode": "open", "limits": {"connections": 20}}))
    numbers = [guest.ask(kind="connect", name="here.test", address="198.18.1.1", port=port) for _ in range(200)]
    outcomes = [await guest.outcome(number) for number in numbers]
    opened = [outcome for outcome in outcomes if isinstance(outcome, Connected)]
    assert len(opened) == 20 and outlet.usage.connections == 20
    for connection in opened:
        connection.channel.reset("cancelled", "gone")
    await eventually(lambda: outlet.usage.connections == 0, "the end of all")
    await guest.connected("here.test", port)


async def test_sandboxes_that_take_all_they_can_leave_some_for_others(serve: MakeGuest, ground: Ground, servers: Servers) -> None:
    """Each takes as many as it gets. The room is never full, and what is given back is there again."""
    ground.room = Room(64)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    port = await servers.start(silent)
    outlets = [Outlet(ground) for _ in range(4)]
    got = []
    for outlet in outlets:
        guest = await serve(outlet)
        connections = []
        while isinstance(outcome := await guest.connect("here.test", port), Connected):
            connections.append(outcome)
        assert "its share" in outcome["reason"] and (await guest.resolve("here.test"))["verdict"] == "refused"
        assert outlet.log.lines()[-1].rule == "server"
        got.append(connections)
    assert [len(connections) for connections in got] == [32, 16, 8, 4]
    for connection in got[0]:
        connection.channel.reset("cancelled", "gone")
    await eventually(lambda: ground.room.used == 28, "the end of the first sandbox's")
    assert isinstance(await guest.connect("here.test", port), Connected)


def test_the_room_follows_the_limit_of_the_process() -> None:
    assert find_room().most == int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * SOCKETS_OF_DESCRIPTORS)
