"""The packet filter of a guest: what happens to a packet that would leave it, as netfilter rules in netlink's form.

The guest's default route goes through its loopback device. A packet on it that is not for a local address is one for the outside:

    TCP, first packet   held in a queue that the agent reads. It asks the host, and then lets the packet go on, or has it answered
                        with a RST, so that connect() in the program fails as it would anywhere
    TCP                 redirected to the agent's listener
    UDP to port 53      redirected to the agent's name service, whatever server it is addressed to
    anything else       dropped, which the sender is told: its send fails with EPERM

These rules are a service to programs, not a wall: without them (root in the guest may remove them) packets go nowhere at all.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from belljar.guest.net import netlink
from belljar.guest.net.netlink import attribute, nested, number, text

QUEUE: Final = 1022
REFUSED: Final = 0xBE110001  # a mark that the agent puts on a packet

_TABLE: Final = "belljar"
_NFTABLES: Final = 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_LOCAL_OUT: Final = 3
_DROP, _ACCEPT = 0, 1
_EQUAL, _DIFFERENT = 0, 1
_VERDICT_REGISTER, _REGISTER = 0, 1
_NETWORK, _TRANSPORT = 1, 2
_MARK, _OIFNAME, _L4PROTO = 3, 7, 16
_ADDRESS_TYPE, _OF_DESTINATION, _LOCAL = 3, 2, 2
_BY_RST: Final = 1
_SYN, _RST, _ACK = 0x02, 0x04, 0x10

Rule = list[bytes]


def rule_set(stream_port: int, datagram_port: int) -> tuple[bytes, int]:
    """The batch that installs everything, and how many acknowledgements it brings."""
    chains: list[tuple[str, str, int, list[Rule]]] = [
        # Traffic within the guest is none of our business: connection tracking would only fill its table with it.
        ("untracked", "filter", -300, [[*_source_in_127(), *_target_in_127(), _expression("notrack")]]),
        (
            "judge",
            "filter",
            -150,
            [
                [*_leaves_by_other_device(), _verdict(_ACCEPT)],
                [*_target_is_local(), _verdict(_ACCEPT)],
                # What is bound to 127.0.0.1 cannot talk to the outside: answers would look like traffic within the guest.
                [*_source_in_127(), *_protocol(socket.IPPROTO_TCP), _reject_by_rst()],
                [*_source_in_127(), _verdict(_DROP)],
                [*_protocol(socket.IPPROTO_TCP), *_is_syn(), _queue()],
                [*_protocol(socket.IPPROTO_TCP), _verdict(_ACCEPT)],
                [*_protocol(socket.IPPROTO_UDP), *_target_port(53), _verdict(_ACCEPT)],
                [_verdict(_DROP)],
            ],
        ),
        ("refuse", "filter", -140, [[*_marked(REFUSED), *_protocol(socket.IPPROTO_TCP), _reject_by_rst()]]),
        (
            "redirect",
            "nat",
            -100,
            [
                [*_leaves_by_other_device(), _verdict(_ACCEPT)],
                [*_target_is_local(), _verdict(_ACCEPT)],
                [*_protocol(socket.IPPROTO_TCP), *_redirect(stream_port)],
                [*_protocol(socket.IPPROTO_UDP), *_target_port(53), *_redirect(datagram_port)],
            ],
        ),
    ]
    batch = [_message(_NEW_TABLE, text(1, _TABLE) + number(2, 0))]
    for name, kind, priority, rules in chains:
        hook = nested(4, number(1, _LOCAL_OUT), number(2, priority))
        batch.append(_message(_NEW_CHAIN, text(1, _TABLE) + text(3, name) + hook + number(5, _ACCEPT) + text(7, kind)))
        for rule in rules:
            listed = nested(4, *(nested(1, expression) for expression in rule))
            batch.append(_message(_NEW_RULE, text(1, _TABLE) + text(2, name) + listed))
    return b"".join([_edge(_BATCH_BEGIN), *batch, _edge(_BATCH_END)]), len(batch)


def _message(kind: int, attributes: bytes) -> bytes:
    flags = netlink.ACK | netlink.CREATE | (0x800 if kind == _NEW_RULE else 0)  # 0x800: append
    return netlink.netfilter(_NFTABLES, kind, socket.AF_INET, attributes, flags=flags)


def _edge(kind: int) -> bytes:
    return netlink.netfilter(0, kind, socket.AF_UNSPEC, b"", resource=_NFTABLES)


# -- expressions


def _expression(name: str, *attributes: bytes) -> bytes:
    return text(1, name) + nested(2, *attributes)


def _compare(operator: int, value: bytes) -> bytes:
    return _expression("cmp", number(1, _REGISTER), number(2, operator), nested(3, attribute(1, value)))


def _meta(key: int) -> bytes:
    return _expression("meta", number(1, _REGISTER), number(2, key))


def _payload(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", number(1, _REGISTER), number(2, base), number(3, offset), number(4, length))


def _masked(mask: bytes) -> bytes:
    zero = bytes(len(mask))
    masks = nested(4, attribute(1, mask)), nested(5, attribute(1, zero))
    return _expression("bitwise", number(1, _REGISTER), number(2, _REGISTER), number(3, len(mask)), *masks)


def _leaves_by_other_device() -> Rule:
    return [_meta(_OIFNAME), _compare(_DIFFERENT, b"lo".ljust(16, b"\0"))]


def _target_is_local() -> Rule:
    fib = _expression("fib", number(1, _REGISTER), number(2, _ADDRESS_TYPE), number(3, _OF_DESTINATION))
    return [fib, _compare(_EQUAL, struct.pack("=I", _LOCAL))]


def _source_in_127() -> Rule:
    return [_payload(_NETWORK, 12, 1), _compare(_EQUAL, b"\x7f")]


def _target_in_127() -> Rule:
    return [_payload(_NETWORK, 16, 1), _compare(_EQUAL, b"\x7f")]


def _protocol(value: int) -> Rule:
    return [_meta(_L4PROTO), _compare(_EQUAL, bytes([value]))]


def _target_port(port: int) -> Rule:
    return [_payload(_TRANSPORT, 2, 2), _compare(_EQUAL, struct.pack(">H", port))]


def _is_syn() -> Rule:
    return [_payload(_TRANSPORT, 13, 1), _masked(bytes([_SYN | _RST | _ACK])), _compare(_EQUAL, bytes([_SYN]))]


def _marked(mark: int) -> Rule:
    return [_meta(_MARK), _compare(_EQUAL, struct.pack("=I", mark))]


def _verdict(code: int) -> bytes:
    return _expression("immediate", number(1, _VERDICT_REGISTER), nested(2, nested(2, number(1, code))))


def _queue() -> bytes:
    return _expression("queue", attribute(1, struct.pack(">H", QUEUE)), attribute(2, struct.pack(">H", 1)))


def _reject_by_rst() -> bytes:
    return _expression("reject", number(1, _BY_RST))


def _redirect(port: int) -> Rule:
    value = nested(2, attribute(1, struct.pack(">H", port)))
    return [_expression("immediate", number(1, _REGISTER), value), _expression("redir", number(1, _REGISTER))]
