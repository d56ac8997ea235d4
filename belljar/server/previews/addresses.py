"""Where previews live: `{port}-{sandbox}.{any domain}` by host, and below the API by path.

The first label alone decides, whatever domain follows. So previews work under any name that leads to this server, and no request to
such a name ever reaches the API: a page that a guest wrote has no more rights there than any other page in the world.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from belljar.server.auth import is_loopback

LABEL = re.compile(r"([0-9]{1,5})-([a-z0-9][a-z0-9-]{0,62})", re.ASCII)
SCHEMES = {"ws": "http", "wss": "https"}


@dataclass(frozen=True)
class PreviewHost:
    """What a host name says; whether there is such a port is not known yet."""

    port: str
    sandbox_id: str


def find_preview(host: str) -> PreviewHost | None:
    """The preview that a Host header names, or None if it names the server itself."""
    found = LABEL.fullmatch(host.lower().partition(":")[0].partition(".")[0])
    return PreviewHost(found.group(1), found.group(2)) if found else None


def from_this_machine(connection: HTTPConnection) -> bool:
    """A reverse proxy on this machine is believed what it says about the client; nobody else is."""
    return connection.client is not None and is_loopback(connection.client.host)


def scheme_of(connection: HTTPConnection) -> str:
    """`http` or `https`, as the client sees it."""
    told = connection.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    if told in ("http", "https") and from_this_machine(connection):
        return told
    scheme: str = connection.scope["scheme"]
    return SCHEMES.get(scheme, scheme)


def origin_of(connection: HTTPConnection) -> str:
    """Scheme and host, as the client wrote them."""
    return f"{scheme_of(connection)}://{connection.headers.get('host') or connection.url.netloc}"


def preview_url(connection: HTTPConnection, domain: str, sandbox_id: str, port: int) -> str | None:
    """The address by host. None if the server is known by a bare address only, below which there are no names."""
    if domain == "auto":
        domain = _own_domain(connection)
    return f"{scheme_of(connection)}://{port}-{sandbox_id}.{domain}/" if domain else None


def _own_domain(connection: HTTPConnection) -> str:
    try:
        name, number = connection.url.hostname or "", connection.url.port
    except ValueError:
        return ""  # a Host header that is none
    port = f":{number}" if number else ""
    if is_loopback(name):
        return f"localhost{port}"
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.removeprefix("api.") + port
    return ""


def proxy_prefix(sandbox_id: str, port: int) -> str:
    return f"/v1/sandboxes/{sandbox_id}/proxy/{port}"


def link_prefix(token: str) -> str:
    return f"/v1/p/{token}"
