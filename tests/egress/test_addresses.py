"""Where no sandbox gets, whatever its policy says."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.addresses import Reach, find_own_addresses, parse_address, parse_networks
from belljar.errors import InvalidInput

BANNED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:93.184.216.34",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "100::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fe80::1%eth0",
    "2606:4700::1%1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "100.128.0.1",
    "192.0.1.1",
    "198.20.0.1",
    "223.255.255.255",
    "2606:4700::1111",
    "2a00:1450::1",
]


def reach(*opened: str, own: str = "9.9.9.9") -> Reach:
    return Reach(parse_networks(",".join(opened) or "none", "x"), lambda: frozenset({ipaddress.ip_address(own)}))


@pytest.mark.parametrize("address", BANNED)
def test_banned(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert str(parsed) in (reach().find_ban(parsed) or ""), "it is reachable"


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert reach().find_ban(ipaddress.ip_address(address)) is None


def test_the_hosts_own_public_address_is_banned_too() -> None:
    assert "this host itself" in (reach().find_ban(ipaddress.ip_address("9.9.9.9")) or "")


def test_only_what_the_server_opens_is_open() -> None:
    opened = reach("10.1.2.0/24", "127.0.0.1", "9.9.9.9")
    assert opened.find_ban(ipaddress.ip_address("10.1.2.9")) is None
    assert opened.find_ban(ipaddress.ip_address("127.0.0.1")) is None
    assert opened.find_ban(ipaddress.ip_address("9.9.9.9")) is None
    for still in ("10.1.3.1", "127.0.0.2", "::ffff:10.1.2.9", "::ffff:127.0.0.1"):
        assert opened.find_ban(ipaddress.ip_address(still)), still


def test_this_hosts_addresses_are_found() -> None:
    found = find_own_addresses()
    assert ipaddress.ip_address("127.0.0.1") in found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing; tells which address the host would use
        except OSError:
            pytest.skip("this host has no route")
        assert ipaddress.ip_address(sock.getsockname()[0]) in found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.1",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "2130706433",
        "127.0.0.1 ",
        "127.0.0.1\n",
        "1.2.3.4.5",
        "1.2.3.256",
        "1.2.3.04",
        "a.test",
        "[::1]",
        "1.2.3.4:80",
        "١.2.3.4",
        "x" * 100,
        None,
        7,
        b"1.2.3.4",
        ["1.2.3.4"],
    ],
)
def test_only_plain_addresses_are_addresses(text: object) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


@given(st.ip_addresses(v=4))
def test_no_form_of_a_banned_ipv4_address_is_open(address: ipaddress.IPv4Address) -> None:
    packed = int(address)
    for form in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::"):
        assert reach().find_ban(ipaddress.IPv6Address(int(ipaddress.IPv6Address(form)) + packed)), form
    assert reach().find_ban(ipaddress.IPv6Address((0x2002 << 112) + (packed << 80)))


@pytest.mark.parametrize("text", ["x", "10.0.0.1/8", "10.0.0.0/8,", "1.2.3.4:80", ""])
def test_a_bad_setting_is_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="egress_allow_private"):
        parse_networks(text, "egress_allow_private")
