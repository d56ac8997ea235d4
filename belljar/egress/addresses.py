"""Where no sandbox gets by itself, whatever its policy says: this host, its networks, and addresses that mean something else.

A name is judged by the addresses that it leads to, and a connection by the address that it is made to. Only the server's own
configuration opens one of these.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from belljar.egress.policy import Address, Network
from belljar.errors import InvalidInput

_BANNED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "means this host"),
    ("10.0.0.0/8", "is private"),
    ("100.64.0.0/10", "is shared between networks of a provider"),
    ("127.0.0.0/8", "is loopback"),
    ("169.254.0.0/16", "is link-local, where hosts have their metadata"),
    ("168.63.129.16/32", "is a metadata address"),
    ("172.16.0.0/12", "is private"),
    ("192.0.0.0/24", "is reserved"),
    ("192.0.2.0/24", "is for documents"),
    ("192.88.99.0/24", "leads to another address (6to4)"),
    ("192.168.0.0/16", "is private"),
    ("198.18.0.0/15", "stands for a name inside sandboxes only"),
    ("198.51.100.0/24", "is for documents"),
    ("203.0.113.0/24", "is for documents"),
    ("224.0.0.0/4", "is multicast"),
    ("255.255.255.255/32", "is broadcast"),
    ("240.0.0.0/4", "is reserved"),
    ("::/128", "means this host"),
    ("::1/128", "is loopback"),
    ("::ffff:0:0/96", "carries another address (IPv4-mapped)"),
    ("::ffff:0:0:0/96", "carries another address (IPv4-translated)"),
    ("::/96", "carries another address (IPv4-compatible)"),
    ("64:ff9b::/96", "carries another address (NAT64)"),
    ("64:ff9b:1::/48", "carries another address (NAT64)"),
    ("2001::/32", "carries another address (Teredo)"),
    ("2001:db8::/32", "is for documents"),
    ("2001::/23", "is reserved"),
    ("2002::/16", "carries another address (6to4)"),
    ("3fff::/20", "is for documents"),
    ("fc00::/7", "is private"),
    ("fe80::/10", "is link-local"),
    ("fec0::/10", "is site-local"),
    ("ff00::/8", "is multicast"),
)
BANNED: tuple[tuple[Network, str], ...] = tuple((ipaddress.ip_network(text), why) for text, why in _BANNED)
# Outside of this, no IPv6 address is given to anyone.
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
LOOK_AGAIN_S = 10.0


class Reach:
    """What this host connects to for a sandbox. `opened` are the networks that the server's configuration opens."""

    def __init__(self, opened: Sequence[Network] = (), own: Callable[[], frozenset[Address]] | None = None) -> None:
        self._opened = tuple(opened)
        self._find_own = own or find_own_addresses
        self._own: frozenset[Address] = frozenset()
        self._looked = float("-inf")

    def find_ban(self, address: Address) -> str | None:
        """Why no sandbox may connect there, or None."""
        if any(address in network for network in self._opened):
            return None
        for network, why in BANNED:
            if address in network:
                return f"{address} {why}"
        if isinstance(address, ipaddress.IPv6Address) and (address not in GLOBAL_IPV6 or address.scope_id):
            return f"{address} is reserved"
        if address in self._own_addresses():
            return f"{address} is this host itself"
        return None

    def _own_addresses(self) -> frozenset[Address]:
        if time.monotonic() - self._looked > LOOK_AGAIN_S:  # hosts get new addresses while they run
            self._own, self._looked = self._find_own(), time.monotonic()
        return self._own


def find_own_addresses() -> frozenset[Address]:
    """The addresses of this host's interfaces, and their broadcast addresses, as the kernel's own tables have them."""
    found: set[Address] = set()
    try:
        last: Address | None = None
        for line in Path("/proc/net/fib_trie").read_text().splitlines():
            words = line.split()
            if words[0] == "|--":
                last = ipaddress.IPv4Address(words[1])
            elif last is not None and words[0] == "/32" and words[-1] in ("LOCAL", "BROADCAST"):
                found.add(last)
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found.add(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))
    except FileNotFoundError:
        pass  # a kernel without one of the two protocols
    return frozenset(found)


def parse_address(text: object) -> Address:
    """An address as the guest's agent writes it: dotted or IPv6, nothing in between. ValueError for all else."""
    if not isinstance(text, str) or len(text) > 45:
        raise ValueError("it is no address")
    return ipaddress.ip_address(text)  # takes neither octal, hexadecimal nor short forms


def parse_networks(text: str, setting: str) -> tuple[Network, ...]:
    """A comma-separated list out of the configuration; `none` is empty."""
    networks = []
    for word in text.split(",") if text != "none" else ():
        try:
            networks.append(ipaddress.ip_network(word.strip()))
        except ValueError as problem:
            message = f"{setting} has {word.strip()[:60]!r}, which is no address or network ({problem}); write 10.1.2.0/24, or none"
            raise InvalidInput(message, setting=setting) from None
    return tuple(networks)
