"""Bytes between the agent and its kernel: netlink, held packets, ICMP. That the kernel understands them is tried in a machine."""

from __future__ import annotations

import socket
import struct

import pytest

from belljar.guest.net import netlink
from belljar.guest.net.rules import rule_set
from belljar.guest.net.synqueue import parse_packet, render_unreachable


def held_packet(options: bytes = b"") -> bytes:
    header = struct.pack(">BBHHHBBH", 0x40 | (5 + len(options) // 4), 0, 40, 1, 0, 64, 6, 0)
    header += socket.inet_aton("198.18.0.1") + socket.inet_aton("93.184.216.34") + options
    tcp = struct.pack(">HHII", 43210, 443, 7, 0) + bytes(8)
    return bytes(4) + netlink.attribute(1, struct.pack(">IHB", 99, 0x0800, 3)) + netlink.attribute(10, header + tcp)


@pytest.mark.parametrize("options", [b"", bytes(8), bytes(40)])
def test_held_packet_tells_who_wants_to_go_where(options: bytes) -> None:
    syn = parse_packet(held_packet(options))
    assert syn is not None
    assert (syn.number, syn.source, syn.target) == (99, ("198.18.0.1", 43210), ("93.184.216.34", 443))
    assert len(syn.start) == 20 + len(options) + 8


def test_truncated_packets_are_nothing() -> None:
    whole = held_packet()
    for length in range(len(whole) - 8):
        assert parse_packet(whole[:length]) is None, f"{length} bytes were taken for a whole packet"


def test_unreachable_message_has_a_right_checksum() -> None:
    for start in (bytes(28), b"\xff" * 28, bytes(range(60))):
        total = sum(struct.unpack(f">{(8 + len(start)) // 2}H", render_unreachable(start)))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        assert total == 0xFFFF


def test_rules_are_whole_messages_and_each_is_acknowledged() -> None:
    data, acknowledgements = rule_set(1022, 1023)
    found = list(netlink.parse_messages(data))
    assert len(found) == acknowledgements + 2, "all but the two ends of the batch ask for an answer"
    assert [kind for kind, _ in (found[0], found[-1])] == [0x10, 0x11]
    assert data.count(struct.pack(">H", 1023)) == 1


def test_malformed_netlink_ends_the_reading() -> None:
    good = netlink.message(5, 0, b"body")
    assert list(netlink.parse_messages(good + good[:10])) == [(5, b"body")]
    assert list(netlink.parse_messages(struct.pack("=IHHII", 3, 0, 0, 0, 0))) == []
    assert netlink.parse_attributes(netlink.text(1, "a") + b"\x01\x00\x02\x00") == {1: b"a\0"}


def test_refusal_of_the_kernel_is_raised() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(
            netlink.message(netlink.ERROR, 0, struct.pack("=i", 0)) + netlink.message(netlink.ERROR, 0, struct.pack("=i", -13))
        )
        with pytest.raises(PermissionError):
            netlink.send_acknowledged(ours, b"two messages", 2)
