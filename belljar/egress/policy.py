"""What a sandbox may connect to: rules, and how they decide. Pure: nothing is looked up or connected here.

    mode    off          nothing
            allow-list   what an allow rule matches
            open         everything
    deny    rules that win over all of that

A rule is a name (`pypi.org`), all names below one (`*.pythonhosted.org`, not the bare `pythonhosted.org`), an address or a network
(`1.2.3.4`, `10.1.2.0/24`), each with a port or for all of them (`example.com:443`, `[2001:db8::1]:443`).

An allow rule with an address speaks of connections to that very address. A name needs a rule that names it: otherwise one
address rule would let a sandbox have every name of the world looked up, and names carry data. A deny rule with an address also
holds for names that lead there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast, get_args

from belljar.egress.names import parse_name
from belljar.errors import InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Mode = Literal["off", "allow-list", "open"]

MODES: tuple[str, ...] = get_args(Mode)
MAX_RULES = 1000
# Each takes a channel of the wire, of which there are 1024 for everything.
MAX_CONNECTIONS = 512
MAX_BYTES = 2**60


@dataclass(frozen=True)
class Rule:
    """One line of a list. Either `name` is set (with `below`: the names below it) or `network`; `port` None is any."""

    text: str
    name: str | None = None
    below: bool = False
    network: Network | None = None
    port: int | None = None

    def covers(self, port: int | None) -> bool:
        """`port` None asks whether the rule could apply at all."""
        return self.port is None or port is None or port == self.port


@dataclass(frozen=True)
class Limits:
    """0 is no limit of its own."""

    connections: int = 0
    bytes_per_second: int = 0
    bytes: int = 0

    def within(self, most: Limits) -> Limits:
        """The stricter of both, field by field."""
        pairs = ((getattr(self, name), getattr(most, name)) for name in LIMITS)
        return Limits(*(min(own or high, high or own) for own, high in pairs))


LIMITS = ("connections", "bytes_per_second", "bytes")
LIMIT_BOUNDS = {"connections": MAX_CONNECTIONS, "bytes_per_second": MAX_BYTES, "bytes": MAX_BYTES}


@dataclass(frozen=True)
class Decision:
    """Whether, and why: `rule` is what decided, `reason` says it in words."""

    allowed: bool
    rule: str
    reason: str


class _Table:
    """Rules in a form that finds the one that matches without looking at all of them."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._exact: dict[str, list[Rule]] = {}
        self._below: dict[str, list[Rule]] = {}
        self._networks: list[Rule] = []
        for rule in rules:
            if rule.name is None:
                self._networks.append(rule)
            else:
                (self._below if rule.below else self._exact).setdefault(rule.name, []).append(rule)

    def find_name(self, name: str, port: int | None, *, whole: bool = False) -> Rule | None:
        """`whole`: only a rule that holds for every port."""
        found = list(self._exact.get(name, ()))
        parent = name
        while "." in parent:
            parent = parent.partition(".")[2]
            found += self._below.get(parent, ())
        return next((rule for rule in found if rule.covers(port) and not (whole and rule.port is not None)), None)

    def find_address(self, address: Address, port: int | None, *, whole: bool = False) -> Rule | None:
        for rule in self._networks:
            if rule.network is not None and address in rule.network and rule.covers(port) and not (whole and rule.port is not None):
                return rule
        return None


@dataclass(frozen=True)
class Policy:
    """What one sandbox may reach."""

    mode: Mode = "open"
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def _allowed(self) -> _Table:
        return _Table(self.allow)

    @cached_property
    def _denied(self) -> _Table:
        return _Table(self.deny)

    def judge_name(self, name: str, port: int | None = None) -> Decision:
        """By name alone. Without a port: whether any connection to that name could be allowed."""
        if self.mode == "off":
            return Decision(False, "mode off", "the network of this sandbox is off")
        if rule := self._denied.find_name(name, port, whole=port is None):
            return Decision(False, f"deny {rule.text}", f"the rule {rule.text!r} denies it")
        if self.mode == "open":
            return Decision(True, "mode open", "the network of this sandbox is open")
        if rule := self._allowed.find_name(name, port):
            return Decision(True, f"allow {rule.text}", f"the rule {rule.text!r} allows it")
        if port is not None and (rule := self._allowed.find_name(name, None)):
            return Decision(False, "mode allow-list", f"port {port} is not on the allow list, which has {rule.text!r}")
        return Decision(False, "mode allow-list", "not on the allow list")

    def judge_address(self, address: Address, port: int) -> Decision:
        """A connection to a literal address."""
        if self.mode == "off":
            return Decision(False, "mode off", "the network of this sandbox is off")
        if refusal := self.find_denial(address, port):
            return refusal
        if self.mode == "open":
            return Decision(True, "mode open", "the network of this sandbox is open")
        if rule := self._allowed.find_address(address, port):
            return Decision(True, f"allow {rule.text}", f"the rule {rule.text!r} allows it")
        return Decision(False, "mode allow-list", "not on the allow list")

    def find_alias_denial(self, alias: str, port: int | None) -> Decision | None:
        """The deny rule for a name that an allowed one leads to."""
        if rule := self._denied.find_name(alias, port, whole=port is None):
            return Decision(False, f"deny {rule.text}", f"it leads to {alias}, and the rule {rule.text!r} denies that")
        return None

    def find_denial(self, address: Address, port: int | None) -> Decision | None:
        """The deny rule that an address falls under, however one came to it."""
        if rule := self._denied.find_address(address, port, whole=port is None):
            return Decision(False, f"deny {rule.text}", f"the rule {rule.text!r} denies {address}")
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "allow": [rule.text for rule in self.allow],
            "deny": [rule.text for rule in self.deny],
            "limits": {name: getattr(self.limits, name) for name in LIMITS},
        }


def parse_policy(value: object) -> Policy:
    """A policy as callers write it: an object, a mode's name, or a list of what is allowed. InvalidInput says what is wrong."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, str) and value in MODES:
        return Policy(cast(Mode, value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        # Nothing on the list: nothing is allowed, and no name is even looked up.
        return Policy("allow-list", parse_rules(value, "allow")) if value else Policy("off")
    if not isinstance(value, Mapping):
        raise InvalidInput(f"egress must be an object, a list of hosts, or one of {', '.join(MODES)}")
    if unknown := [str(key)[:40] for key in value if key not in ("mode", "allow", "deny", "limits")]:
        raise InvalidInput(f"egress has no field {unknown[0]!r}; it has mode, allow, deny and limits")
    allow = parse_rules(value.get("allow") or (), "allow")
    mode = value.get("mode") or ("allow-list" if allow else "open")
    if mode not in MODES:
        raise InvalidInput(f"egress.mode must be one of {', '.join(MODES)}")
    return Policy(cast(Mode, mode), allow, parse_rules(value.get("deny") or (), "deny"), parse_limits(value.get("limits") or {}))


def parse_limits(value: object) -> Limits:
    if not isinstance(value, Mapping):
        raise InvalidInput("egress.limits must be an object")
    if unknown := [str(key)[:40] for key in value if key not in LIMITS]:
        raise InvalidInput(f"egress.limits has no field {unknown[0]!r}; it has {', '.join(LIMITS)}")
    for name, high in LIMIT_BOUNDS.items():
        number = value.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= high:
            raise InvalidInput(f"egress.limits.{name} must be a whole number from 0 to {high}")
    return Limits(**{name: value.get(name, 0) for name in LIMITS})


def parse_rules(values: object, what: str) -> tuple[Rule, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
        raise InvalidInput(f"egress.{what} must be a list of texts like 'pypi.org', '*.example.com' or '10.1.2.0/24:5432'")
    if len(values) > MAX_RULES:
        raise InvalidInput(f"egress.{what} has {len(values)} rules; at most {MAX_RULES} are possible")
    rules = {}
    for text in values:
        try:
            rule = parse_rule(text)
        except ValueError as problem:
            raise InvalidInput(f"egress.{what}: {text[:80]!r} is no rule: {problem}") from None
        rules[rule.text] = rule
    return tuple(rules.values())


def parse_rule(text: str) -> Rule:
    """One rule. ValueError says why it is none."""
    text = text.strip()
    if "://" in text:
        raise ValueError("give a host, not a URL")
    host, port = _split_port(text)
    shown = f":{port}" if port is not None else ""
    if network := _find_network(host):
        plain = str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
        return Rule((f"[{plain}]" if shown and network.version == 6 else plain) + shown, network=network, port=port)
    if "*" not in host:
        name = parse_name(host)
        return Rule(name + shown, name=name, port=port)
    if not host.startswith("*.") or "*" in host[1:]:
        raise ValueError("a star stands for all names below another one: '*.example.com'; to allow everything, use mode open")
    name = parse_name(host[2:])
    return Rule(f"*.{name}{shown}", name=name, below=True, port=port)


def _split_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("an IPv6 address with a port is written [address]:port")
        port = rest[1:] if rest else None
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        return text, None
    if port is None:
        return host, None
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise ValueError("a port is a number from 1 to 65535")
    return host, int(port)


def _find_network(host: str) -> Network | None:
    try:
        network = ipaddress.ip_network(host)
    except ValueError as problem:
        # Something that was meant as a network must not be read as a name.
        if "/" in host or ":" in host:
            raise ValueError(str(problem)) from None
        return None
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.scope_id:
        raise ValueError("an address with a zone names no host elsewhere")
    return network
