"""Headers on their way to a guest and back. What concerns one connection only, and what is ours, stays here.

A path of the API's own host also belongs to the API's origin. So pages that come by path are put into an origin of their own
(`Content-Security-Policy: sandbox`), and headers that would speak for the whole host are left out. To such a page even its own
server is another origin's. Below a link that is told to browsers as allowed: who has the link in the address needs no other right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from starlette.requests import HTTPConnection

from belljar.server.previews.addresses import from_this_machine, scheme_of
from belljar.server.previews.target import Target

Header = tuple[bytes, bytes]

COOKIE = "belljar_preview"
LINK_PARAMETER = b"belljar_token"
OUR_TOKEN = re.compile(rb"pds_[0-9a-f]{32}")
OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
     b"transfer-encoding", b"upgrade", b"http2-settings"}
)  # fmt: skip
# Ours to say; what a client says about itself is not repeated. `Proxy` becomes HTTP_PROXY in the environment of CGI programs.
REPLACED = frozenset({b"host", b"expect", b"forwarded", b"x-real-ip", b"proxy"})
# Orders to a reverse proxy in front of us, or about more than this answer. The date is put in by the server.
NEVER_FROM_GUESTS = frozenset({b"x-accel-redirect", b"x-sendfile", b"x-lighttpd-send-file", b"alt-svc", b"date"})
NEVER_FOR_OUR_HOST = frozenset(
    {b"strict-transport-security", b"clear-site-data", b"service-worker-allowed", b"nel", b"report-to", b"reporting-endpoints",
     b"public-key-pins"}
)  # fmt: skip
OWN_ORIGIN: Header = (
    b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"
)  # fmt: skip
ANY_PAGE: tuple[Header, ...] = ((b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*"))
ABOUT_OTHER_PAGES = frozenset({b"access-control-allow-credentials", *(name for name, _ in ANY_PAGE)})


def to_guest(connection: HTTPConnection, target: Target) -> list[Header]:
    """The headers of a request as the guest's server gets them, without those that frame its body."""
    kept = [(b"host", _host(connection, target))]
    for name, value in _of_the_message(connection.scope["headers"]):
        if name in REPLACED or name.startswith((b"x-forwarded-", b"sec-websocket-")) or _is_ours(name, value, target):
            continue
        if name == b"cookie":
            value = b"; ".join(each for each in re.split(rb";\s*", value) if each.partition(b"=")[0] != COOKIE.encode())
            if not value:
                continue
        kept.append((name, value))
    return [*kept, *_forwarded(connection, target)]


def from_guest(headers: Iterable[Header], target: Target) -> list[Header]:
    """The headers of an answer as the client gets them."""
    given = [(name.lower(), value) for name, value in headers]
    chunked = any(name == b"transfer-encoding" for name, _ in given)
    kept = []
    for name, value in _of_the_message(given):
        if name in NEVER_FROM_GUESTS or (name == b"content-length" and chunked) or (target.prefix and name in NEVER_FOR_OUR_HOST):
            continue
        if target.named_by_link and name in ABOUT_OTHER_PAGES:
            continue
        if name == b"set-cookie":
            if value.partition(b"=")[0].strip() == COOKIE.encode():
                continue
            value = _cookie(value, target.prefix)
        elif name in (b"location", b"content-location") and target.prefix:
            value = _location(value, target)
        kept.append((name, value))
    if target.prefix:
        kept += [OWN_ORIGIN, (b"referrer-policy", b"no-referrer")]
    if target.named_by_link:
        kept += ANY_PAGE
    return kept


def find_leave(connection: HTTPConnection) -> list[Header] | None:
    """The answer to a browser that asks, before a request, whether a page may make it. None if it does not ask that."""
    method = connection.headers.get("access-control-request-method")
    if connection.scope.get("method") != "OPTIONS" or method is None:
        return None
    named = connection.headers.get("access-control-request-headers", "")
    allowed = {"methods": method, "headers": named}
    told = [(f"access-control-allow-{what}".encode(), value.encode("latin-1")) for what, value in allowed.items()]
    return [*ANY_PAGE, *told, (b"access-control-max-age", b"600")]


def without_our_parameters(query: bytes) -> bytes:
    """The query without what was meant for us: a link, or a token of this server."""
    kept = []
    for part in query.split(b"&"):
        name, value = (unquote_to_bytes(word.replace(b"+", b" ")) for word in part.partition(b"=")[::2])
        if name != LINK_PARAMETER and not (name == b"access_token" and OUR_TOKEN.fullmatch(value)):
            kept.append(part)
    return b"&".join(kept)


def _of_the_message(headers: Iterable[Header]) -> list[Header]:
    given = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in given if name == b"connection" for token in value.split(b",")}
    return [(name, value) for name, value in given if name not in OF_ONE_CONNECTION and name not in named]


def _is_ours(name: bytes, value: bytes, target: Target) -> bool:
    """By path credentials are the API's. By host an application in the guest may have its own; only our tokens are taken out."""
    if name not in (b"authorization", b"x-api-key"):
        return False
    return bool(target.prefix) or OUR_TOKEN.search(value) is not None


def _host(connection: HTTPConnection, target: Target) -> bytes:
    """By host it stays as it is, because servers compare it with the Origin of a page. By path our own name would lead nowhere."""
    host = connection.headers.get("host", "").encode("latin-1")
    return host if host and not target.prefix else f"localhost:{target.port}".encode()


def _forwarded(connection: HTTPConnection, target: Target) -> list[Header]:
    client = connection.client.host if connection.client else "unknown"
    before = connection.headers.get("x-forwarded-for") if from_this_machine(connection) else None
    scheme, host = scheme_of(connection), connection.headers.get("host", "")
    shown = f'"[{client}]"' if ":" in client else client
    added = {
        "x-forwarded-for": f"{before}, {client}" if before else client,
        "x-forwarded-host": host,
        "x-forwarded-proto": scheme,
        "forwarded": f'for={shown};host="{host}";proto={scheme}',
    }
    if target.prefix:
        added["x-forwarded-prefix"] = target.prefix
    return [(name.encode(), value.encode("latin-1")) for name, value in added.items()]


def _cookie(value: bytes, prefix: str) -> bytes:
    """A cookie for this host alone, and by path for this preview alone."""
    pair, *attributes = value.split(b";")
    kept = [pair]
    for attribute in attributes:
        name, _, content = attribute.strip().partition(b"=")
        if name.lower() == b"domain":
            continue
        if name.lower() == b"path" and prefix:
            attribute = b" Path=" + prefix.encode() + (content if content.startswith(b"/") else b"/")
        kept.append(attribute)
    return b";".join(kept).strip()


def _location(value: bytes, target: Target) -> bytes:
    """Where a guest's server sends us next, seen from here: it does not know that it lies below a path."""
    for own in (f"http://localhost:{target.port}", f"http://127.0.0.1:{target.port}"):
        if value == own.encode() or value.startswith(f"{own}/".encode()):
            value = value[len(own) :] or b"/"
    return target.prefix.encode() + value if value.startswith(b"/") and not value.startswith(b"//") else value
