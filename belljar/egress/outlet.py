"""The way out of one sandbox, as it is across all its sessions: policy, limits, log, secrets, and what is open now."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from belljar.egress.addresses import Reach, parse_networks
from belljar.egress.authority import Authority
from belljar.egress.limits import Room, Usage, find_room
from belljar.egress.log import Connection, Log
from belljar.egress.policy import Address, Decision, Limits, Policy, parse_policy
from belljar.egress.resolver import Resolver, Server, find_servers
from belljar.egress.secrets import Secrets
from belljar.egress.tls import client_context
from belljar.errors import InvalidInput
from belljar.settings import Settings

# What decides where no rule of a sandbox may.
SERVER_RULE = "server"
SPENT = "the sandbox has used the bytes that it may move"


@dataclass
class Ground:
    """What the server's configuration says to all sandboxes."""

    reach: Reach = field(default_factory=Reach)
    servers: Sequence[Server] = ()
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    ca_file: Path | None = None
    room: Room = field(default_factory=find_room)
    _tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Ground:
        """InvalidInput names the setting that is wrong. Reads a file; run it in a thread."""
        limits = Limits(settings.egress_connections, settings.egress_bytes_per_second, settings.egress_bytes)
        networks = parse_networks(settings.egress_allow_private, "egress_allow_private")
        ca_file = None if settings.egress_ca_file == "system" else Path(settings.egress_ca_file)
        ground = cls(Reach(networks), find_servers(settings.egress_dns), limits, parse_default(settings.egress), ca_file)
        if ca_file is not None:
            ground.client_tls()  # a file that is not there should not be noticed by the first guest
        return ground

    def client_tls(self) -> ssl.SSLContext:
        """For connections to servers. Reads files the first time; run it in a thread."""
        if self._tls is None:
            try:
                self._tls = client_context(self.ca_file)
            except (OSError, ssl.SSLError) as problem:
                message = f"egress_ca_file: {self.ca_file} holds no certificates ({problem})"
                raise InvalidInput(message, setting="egress_ca_file") from None
        return self._tls


def parse_default(text: str) -> Policy:
    """The setting `egress`: a mode, or what is allowed, separated by commas."""
    try:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return parse_policy(words[0] if words in (["off"], ["open"]) else words)
    except InvalidInput as problem:
        raise InvalidInput(f"{problem.message} (the setting egress)", setting="egress") from None


class Cuttable(Protocol):
    """A connection that is open."""

    line: Connection
    address: Address
    names: tuple[str, ...]

    def cut(self, reason: str) -> None: ...


class Outlet:
    """One sandbox's. Sessions come and go; this stays as long as someone holds the sandbox."""

    def __init__(
        self,
        ground: Ground,
        policy: Policy | None = None,
        secrets: Secrets | None = None,
        authority: Authority | None = None,
        on_denied: Callable[[Connection], None] | None = None,
        used_bytes: int = 0,
    ) -> None:
        self.ground = ground
        self.policy = policy or ground.policy
        self.secrets = secrets or Secrets()
        self.authority = authority
        self.usage = Usage(self.policy.limits.within(ground.limits), used_bytes)
        self.log = Log(on_denied)
        self.resolver = Resolver(ground.servers)
        self.open: set[Cuttable] = set()

    def set_policy(self, policy: Policy) -> None:
        """From now on; what is open and no longer allowed is cut."""
        self.policy = policy
        self.usage.change(policy.limits.within(self.ground.limits))
        for connection in list(self.open):
            line = connection.line
            if refusal := self.find_refusal(connection.names, connection.address, line.port or 0):
                line.rule = refusal.rule
                connection.cut(f"the policy was changed: {refusal.reason}")
        self.cut_if_spent()

    def cut_if_spent(self) -> None:
        """When no byte may be moved any more, no connection is of use, not even one that says nothing."""
        if self.usage.spent:
            for connection in list(self.open):
                connection.cut(SPENT)

    def judge(self, name: str | None, address: Address, port: int) -> Decision:
        """By the sandbox's policy: by name where there is one, else by the literal address."""
        return self.policy.judge_name(name, port) if name is not None else self.policy.judge_address(address, port)

    def find_barrier(self, address: Address, port: int | None) -> Decision | None:
        """Why a connection must not go to this very address, whatever led there."""
        if ban := self.ground.reach.find_ban(address):
            return Decision(False, SERVER_RULE, f"{ban}, and this server does not let sandboxes there")
        return self.policy.find_denial(address, port)

    def find_refusal(self, names: Sequence[str], address: Address, port: int) -> Decision | None:
        """Everything at once, for a connection that was made: why it must not be, or None."""
        decision = self.judge(names[0] if names else None, address, port)
        if not decision.allowed:
            return decision
        aliases = (self.policy.find_alias_denial(alias, port) for alias in names[1:])
        return next((denial for denial in aliases if denial), None) or self.find_barrier(address, port)
