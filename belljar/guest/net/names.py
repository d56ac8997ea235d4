"""Addresses that stand for names: a name that the host has resolved gets one, and a connection to it is one to that name.

They are from 198.18.0.0/15, which is set aside for tests of equipment and never routed. The map is in the agent's memory,
so a fork or a woken sandbox has it too. Addresses are given out in a circle: the address of a name that was forgotten leads
nowhere for a long time before it means another name.
"""

from __future__ import annotations

import socket
import struct
from collections import OrderedDict
from typing import Final

OWN_ADDRESS: Final = "198.18.0.1"
NAME_SERVER: Final = "198.18.0.2"
MAX_NAMES: Final = 4096

_NETWORK: Final = 0xC6120000
_SIZE: Final = 1 << 17
_FIRST: Final = 256  # below are addresses of the guest's own


def parse_address(address: str) -> int:
    value: int = struct.unpack(">I", socket.inet_aton(address))[0]
    return value


def render_address(value: int) -> str:
    return socket.inet_ntoa(struct.pack(">I", value))


class Names:
    """At most `limit` names; the one unused for longest makes room."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._by_name: OrderedDict[str, int] = OrderedDict()
        self._by_address: dict[int, str] = {}
        self._next = _FIRST

    @staticmethod
    def covers(address: str) -> bool:
        return parse_address(address) & ~(_SIZE - 1) == _NETWORK

    def address_of(self, name: str) -> str:
        """The address that stands for `name`, a new one if it has none."""
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_name) >= self._limit:
                _, old = self._by_name.popitem(last=False)
                del self._by_address[old]
            known = self._free_address()
            self._by_name[name] = known
            self._by_address[known] = name
        self._by_name.move_to_end(name)
        return render_address(known)

    def find_name(self, address: str) -> str | None:
        name = self._by_address.get(parse_address(address))
        if name is not None:
            self._by_name.move_to_end(name)
        return name

    def _free_address(self) -> int:
        while True:  # ends: there are many more addresses than names
            candidate = _NETWORK + self._next
            self._next = self._next + 1 if self._next + 1 < _SIZE else _FIRST
            if candidate not in self._by_address:
                return candidate
