"""Names to addresses, with a real DNS server on loopback."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from belljar.egress import resolver as module
from belljar.egress.resolver import MAX_CACHED, ResolveError, Resolver, find_servers
from belljar.errors import InvalidInput
from tests.egress.dns_server import DnsServer


@pytest.fixture
async def resolver(dns: DnsServer) -> Resolver:
    return Resolver([("127.0.0.1", dns.port)])


async def test_addresses_and_the_way_to_them(resolver: Resolver, dns: DnsServer) -> None:
    dns.names |= {
        "www.test": [("CNAME", "cdn.test")],
        "cdn.test": [("CNAME", "edge.test")],
        "edge.test": [("A", "1.1.1.1"), ("A", "1.1.1.2")],
    }
    found = await resolver.resolve("www.test")
    assert {str(address) for address in found.addresses} == {"1.1.1.1", "1.1.1.2"}
    assert found.names == ("www.test", "cdn.test", "edge.test")
    assert found.ttl_s == 60


async def test_a_name_without_ipv4_gives_its_ipv6_address(resolver: Resolver, dns: DnsServer) -> None:
    dns.names["six.test"] = [("AAAA", "2606:4700::1")]
    assert (await resolver.resolve("six.test")).addresses == (ipaddress.ip_address("2606:4700::1"),)


async def test_answers_are_kept_for_their_time(resolver: Resolver, dns: DnsServer) -> None:
    await resolver.resolve("here.test")
    await resolver.resolve("here.test")
    assert len(dns.asked) == 1
    dns.ttl = 0
    dns.names["now.test"] = [("A", "1.1.1.1")]
    await resolver.resolve("now.test")
    dns.names["now.test"] = [("A", "1.1.1.2")]
    assert str((await resolver.resolve("now.test")).addresses[0]) == "1.1.1.2"


async def test_the_cache_is_bounded(resolver: Resolver, dns: DnsServer) -> None:
    for number in range(MAX_CACHED + 20):
        dns.names[f"n{number}.test"] = [("A", "1.1.1.1")]
        await resolver.resolve(f"n{number}.test")
    assert len(resolver._cache) == MAX_CACHED


@pytest.mark.parametrize(
    ("records", "verdict"), [(None, "nxdomain"), ([], "nxdomain"), ("SERVFAIL", "failed"), ("REFUSED", "failed")]
)
async def test_names_that_lead_nowhere(resolver: Resolver, dns: DnsServer, records: object, verdict: str) -> None:
    if records is not None:
        dns.names["x.test"] = records  # type: ignore[assignment]
    with pytest.raises(ResolveError) as caught:
        await resolver.resolve("x.test")
    assert caught.value.verdict == verdict, caught.value.reason


async def test_a_server_that_is_silent_is_given_up(dns: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIFETIME_S", 0.3)
    monkeypatch.setattr(module, "TRY_S", 0.1)
    dns.silent = True
    with pytest.raises(ResolveError, match="in time"):
        await Resolver([("127.0.0.1", dns.port)]).resolve("here.test")


async def test_the_next_server_is_asked_when_one_fails(dns: DnsServer) -> None:
    broken = await DnsServer().start()
    broken.names["here.test"] = "SERVFAIL"
    found = await Resolver([("127.0.0.1", broken.port), ("127.0.0.1", dns.port)]).resolve("here.test")
    broken.stop()
    assert str(found.addresses[0]) == "127.0.0.1"


async def test_a_long_answer_comes_by_tcp(resolver: Resolver, dns: DnsServer) -> None:
    dns.truncate = True
    assert str((await resolver.resolve("here.test")).addresses[0]) == "127.0.0.1"
    assert [transport for _, _, transport in dns.asked] == ["udp", "tcp"]


async def test_the_hosts_own_file_of_names_is_not_used(resolver: Resolver, dns: DnsServer) -> None:
    with pytest.raises(ResolveError):
        await resolver.resolve("localhost")
    assert dns.asked[0][0] == "localhost"


async def test_no_server_is_no_answer() -> None:
    with pytest.raises(ResolveError, match="egress_dns"):
        await Resolver([]).resolve("here.test")


def test_servers_of_the_setting_and_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_servers("1.2.3.4, 5.6.7.8:5353,[::1]:54,::2") == (("1.2.3.4", 53), ("5.6.7.8", 5353), ("::1", 54), ("::2", 53))
    conf = tmp_path / "resolv.conf"
    conf.write_text("# x\nsearch corp.test\nnameserver 9.8.7.6\nnameserver nonsense\nnameserver ::5\n")
    monkeypatch.setattr(module, "RESOLV_CONF", conf)
    assert find_servers("host") == (("9.8.7.6", 53), ("::5", 53))
    monkeypatch.setattr(module, "RESOLV_CONF", tmp_path / "none")
    assert find_servers("host") == ()


@pytest.mark.parametrize("setting", ["x", "1.2.3.4:0", "1.2.3.4:x", "1.2.3.4,", "dns.test", "[::1]:70000"])
def test_a_bad_setting_is_named(setting: str) -> None:
    with pytest.raises(InvalidInput, match="egress_dns"):
        find_servers(setting)
