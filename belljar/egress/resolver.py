"""Names to addresses, by DNS alone: never the host's own files, never its search list. One resolver per sandbox.

What is cached is cached for one sandbox: a shared cache would tell each sandbox what the others look up.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from belljar.egress.addresses import parse_address
from belljar.egress.policy import Address
from belljar.errors import InvalidInput

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver as Backend
    from dns.resolver import Answer

LIFETIME_S = 8.0
TRY_S = 2.5
MAX_CACHED = 512
MAX_TTL_S = 300
NEGATIVE_TTL_S = 5.0
MAX_ADDRESSES = 16
RESOLV_CONF = Path("/etc/resolv.conf")
MAX_SERVERS = 8

Server = tuple[str, int]


@dataclass(frozen=True)
class Resolved:
    """What a name leads to. `names` are the name itself and the aliases on the way."""

    addresses: tuple[Address, ...]
    names: tuple[str, ...]
    ttl_s: int


class ResolveError(Exception):
    """A name that leads nowhere now. `verdict`: there is no such name, or nobody could say."""

    def __init__(self, verdict: Literal["nxdomain", "failed"], reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class Resolver:
    """Asks `servers` in turn, each by UDP and, where an answer is too long for that, by TCP."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = tuple(servers)
        self._backend: Backend | None = None
        self._cache: OrderedDict[str, tuple[float, Resolved | ResolveError]] = OrderedDict()

    async def resolve(self, name: str) -> Resolved:
        """IPv4 addresses, or IPv6 ones for a name that has no others. Raises ResolveError."""
        kept = self._cache.get(name)
        if kept is None or kept[0] <= time.monotonic():
            kept = await self._ask(name)
            self._cache[name] = kept
            self._cache.move_to_end(name)
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        found = kept[1]
        if isinstance(found, ResolveError):
            raise ResolveError(found.verdict, found.reason)
        return found

    async def _ask(self, name: str) -> tuple[float, Resolved | ResolveError]:
        found: Resolved | ResolveError
        try:
            found = await self._query(name)
            return time.monotonic() + found.ttl_s, found
        except ResolveError as problem:
            # What nobody could say now, someone may be able to say in a moment.
            keep_s = NEGATIVE_TTL_S if problem.verdict == "nxdomain" else 0.0
            return time.monotonic() + keep_s, problem

    async def _query(self, name: str) -> Resolved:
        import dns.exception
        import dns.name
        import dns.resolver

        if not self._servers:
            raise ResolveError("failed", "this server knows no name server (the setting egress_dns)")
        backend = self._backend = self._backend or _make_backend(self._servers)
        absolute = dns.name.from_text(f"{name}.")
        try:
            for kind in ("A", "AAAA"):
                answer = await backend.resolve(absolute, kind, raise_on_no_answer=False, search=False)
                if answer.rrset is not None:
                    return _parse(name, answer)
        except dns.resolver.NXDOMAIN:
            raise ResolveError("nxdomain", "there is no such name") from None
        except dns.resolver.LifetimeTimeout:
            raise ResolveError("failed", "the name server did not answer in time") from None
        except (dns.exception.DNSException, OSError, ValueError) as problem:
            raise ResolveError("failed", f"the name server gave no answer ({type(problem).__name__})") from None
        raise ResolveError("nxdomain", "the name has no address")


def _make_backend(servers: Sequence[Server]) -> Backend:
    import dns.asyncresolver
    import dns.nameserver

    backend = dns.asyncresolver.Resolver(configure=False)
    backend.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in servers]
    backend.lifetime, backend.timeout = LIFETIME_S, TRY_S
    return backend


def _parse(name: str, answer: Answer) -> Resolved:
    addresses = [parse_address(record.to_text()) for record in (answer.rrset or ())]
    chain = [name]
    for alias in answer.chaining_result.cnames:
        chain += [record.target.to_text(omit_final_dot=True).lower() for record in alias]
    ttl = max(0, min(MAX_TTL_S, answer.chaining_result.minimum_ttl))
    return Resolved(tuple(addresses[:MAX_ADDRESSES]), tuple(chain), ttl)


def find_servers(setting: str) -> tuple[Server, ...]:
    """The name servers that the setting gives, or those of the host. Reads a file; run it in a thread."""
    if setting != "host":
        return tuple(_parse_server(word.strip()) for word in setting.split(","))
    servers: list[Server] = []
    try:
        for line in RESOLV_CONF.read_text(errors="replace").splitlines():
            words = line.split()
            if len(words) >= 2 and words[0] == "nameserver":
                servers.append((words[1], 53))
    except OSError:
        pass
    return tuple(server for server in servers[:MAX_SERVERS] if _is_address(server[0]))


def _parse_server(word: str) -> Server:
    host, port = word, "53"
    if word.startswith("[") or word.count(":") == 1:
        host, _, port = word.removeprefix("[").rpartition(":") if not word.endswith("]") else (word[1:-1], "", "53")
        host = host.removesuffix("]")
    if not _is_address(host) or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        message = f"egress_dns has {word[:60]!r}, which is no address; write 1.2.3.4 or 1.2.3.4:53, separated by commas, or host"
        raise InvalidInput(message, setting="egress_dns")
    return host, int(port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
