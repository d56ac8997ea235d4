"""What a guest's agent may say on `net.serve`, judged shape by shape: everything in it was written by whoever owns the guest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

MAX_NUMBER = 2**53
# Longer than any name; one that is too long is refused with a reason, but not kept.
MAX_TEXT_CHARS = 256


@dataclass(frozen=True)
class Resolve:
    """The guest wants to know whether there is such a name."""

    number: int
    name: str


@dataclass(frozen=True)
class Connect:
    """The guest wants a connection: to a name that it was told of, or to a literal address."""

    number: int
    name: str | None
    address: str
    port: int


@dataclass(frozen=True)
class Drop:
    """The program in the guest gave up on an ask."""

    number: int


@dataclass(frozen=True)
class Malformed:
    """An ask that has a number, so that it can be answered, and nothing else that makes sense."""

    number: int
    reason: str


Ask = Resolve | Connect | Drop | Malformed


def parse_ask(body: Mapping[str, Any]) -> Ask | None:
    """What was said; None if it is nothing that could be answered."""
    if (dropped := _number(body.get("drop"))) is not None:
        return Drop(dropped)
    number = _number(body.get("ask"))
    if number is None:
        return None
    kind, name, address, port = (body.get(key) for key in ("kind", "name", "address", "port"))
    if kind == "resolve" and isinstance(name, str) and body.get("type") == "A":
        return Resolve(number, name[:MAX_TEXT_CHARS])
    if kind == "connect" and (name is None or isinstance(name, str)) and isinstance(address, str) and _is_port(port):
        return Connect(number, name if name is None else name[:MAX_TEXT_CHARS], address[:MAX_TEXT_CHARS], port)
    return Malformed(number, "the host does not know this kind of request")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_NUMBER else None


def _is_port(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535
