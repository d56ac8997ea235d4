"""What sandboxes of these tests find outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from belljar.fleet.sandboxes import Fleet
from tests.egress.dns_server import DnsServer
from tests.egress.servers import Servers, TestAuthority
from tests.egress.web import Web


class World:
    """A fleet, a DNS server, an authority for TLS servers, and servers that are started when they are needed."""

    def __init__(self, fleet: Fleet, dns: DnsServer, authority: TestAuthority, servers: Servers) -> None:
        self.fleet, self.dns, self.authority, self.servers = fleet, dns, authority, servers
        self._stops: list[Callable[[], None]] = []

    def name(self, name: str, address: str = "127.0.0.1") -> str:
        self.dns.names[name] = [("A", address)]
        return name

    def web(self, folder: Path, tls_name: str | None = None) -> Web:
        web = Web(folder, self.authority.context(tls_name) if tls_name else None)
        self._stops.append(web.stop)
        return web

    def at_end(self, stop: Callable[[], None]) -> None:
        self._stops.append(stop)

    async def stop(self) -> None:
        await self.fleet.aclose()
        await self.servers.stop()
        self.dns.stop()
        for stop in self._stops:
            stop()
