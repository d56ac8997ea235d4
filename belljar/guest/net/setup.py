"""Boot: an address, a route, the packet filter, the agent's sockets, and the resolver's file. All of it is part of the snapshot."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from belljar.guest.net import netlink
from belljar.guest.net.names import NAME_SERVER, OWN_ADDRESS
from belljar.guest.net.rules import rule_set

PORT: Final = 1022  # privileged, so that no program of a user takes it

_BACKLOG: Final = 1024
_NEW_ADDRESS, _NEW_ROUTE = 20, 24
_LOOPBACK_INDEX: Final = 1
_MAIN_TABLE, _BY_BOOT, _LINK_SCOPE, _UNICAST = 254, 3, 253, 1
_RESOLV_CONF: Final = f"nameserver {NAME_SERVER}\n"
_SYN_RETRIES: Final = "/proc/sys/net/ipv4/tcp_syn_retries"
_RETRIES: Final = b"4"  # connect() gives up after 31 s, soon after the host has; 6, as usual, would be two minutes


class Sockets(NamedTuple):
    """Where redirected traffic arrives. PID 1 keeps them, so that they outlive an agent. Without `streams` there are only names."""

    streams: socket.socket | None
    datagrams: socket.socket


def open_sockets(port: int = PORT) -> Sockets:
    streams = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    streams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    streams.bind(("127.0.0.1", port))
    streams.listen(_BACKLOG)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", port))
    for sock in (streams, datagrams):
        sock.setblocking(False)
    return Sockets(streams, datagrams)


def set_up() -> Sockets:
    """Everything. Raises OSError if this kernel cannot do it."""
    with netlink.open_netlink(netlink.ROUTE) as route:
        netlink.send_acknowledged(route, _address())
        netlink.send_acknowledged(route, _default_route())
    sockets = open_sockets()
    with netlink.open_netlink(netlink.NETFILTER) as filters:
        netlink.send_acknowledged(filters, *rule_set(PORT, PORT))
    _set_patience()
    _write_resolv_conf()
    return sockets


def _address() -> bytes:
    """Besides 127.0.0.1, which resolvers do not count as a reason to look up IPv4 addresses, and programs not as their own."""
    address = socket.inet_aton(OWN_ADDRESS)
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, _LOOPBACK_INDEX)
    body += netlink.attribute(1, address) + netlink.attribute(2, address)
    return netlink.message(_NEW_ADDRESS, netlink.ACK | netlink.CREATE | netlink.REPLACE, body)


def _default_route() -> bytes:
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _BY_BOOT, _LINK_SCOPE, _UNICAST, 0)
    body += netlink.attribute(4, struct.pack("=I", _LOOPBACK_INDEX)) + netlink.attribute(7, socket.inet_aton(OWN_ADDRESS))
    return netlink.message(_NEW_ROUTE, netlink.ACK | netlink.CREATE | netlink.REPLACE, body)


def _set_patience() -> None:
    with suppress(OSError):  # a kernel without it only waits longer
        fd = os.open(_SYN_RETRIES, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, _RETRIES)
        os.close(fd)


def _write_resolv_conf() -> None:
    """A file of its own: an image may bring a link to one of systemd's."""
    with suppress(FileNotFoundError):
        os.unlink("/etc/resolv.conf")  # noqa: PTH108
    fd = os.open("/etc/resolv.conf", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    os.write(fd, _RESOLV_CONF.encode())
    os.close(fd)
