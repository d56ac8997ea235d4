"""Ports of a sandbox: which there are, who may look at them, and links to them. The ports themselves are in `server/previews`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import service_of, workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE, OF_A_SANDBOX
from belljar.server.patience import patiently
from belljar.server.previews.addresses import link_prefix, origin_of, preview_url, proxy_prefix
from belljar.server.previews.headers import LINK_PARAMETER
from belljar.server.previews.paths import ROUTES as PROXY_ROUTES
from belljar.server.shapes import TIME, answered, choice, flag, listing, maybe, number, record, text, whole
from belljar.service.links import DEFAULT_TTL_S, MAX_TTL_S
from belljar.service.previews import Port, parse_port
from belljar.service.values import MAX_PORT

PORT = whole("A port of the guest.", 1, MAX_PORT)
SHARE = record(
    {"port": PORT}, {"public": flag("Everyone may use it, without a link.", default=False), "label": text(empty=True, most=200)}
)
SHARED_PORT = answered(
    {
        "port": PORT,
        "label": text(empty=True),
        "listening": flag("Whether a program in the guest listens on it now."),
        "source": choice(["user", "detected"], "Shared by somebody, or only found listening."),
        "public": flag(),
        "process": maybe(text("The program that listens.")),
        "proxy_url": text("Where it is served by path, with a token."),
        "url": maybe(text("Where it is served by host name.")),
    },
    name="Port",
)
PORTS = listing(SHARED_PORT)
LINK = record(
    {"port": PORT},
    {
        "ttl_seconds": number("How long the link works.", low=0, high=MAX_TTL_S, default=DEFAULT_TTL_S),
        "paths": listing(text(most=1024), "Only these paths and what is below them.", most=16),
    },
)
SIGNED_LINK = answered(
    {
        "url": text("Works wherever the API does."),
        "host_url": maybe(text("For browsers, where the host names of previews lead here.")),
        "token": text(),
        "sandbox_id": text(),
        "port": PORT,
        "paths": listing(text()),
        "expires_at": TIME,
    },
    name="PreviewLink",
)


def render_port(request: Request, port: Port) -> dict[str, Any]:
    """`url` is null where the server is known by a bare address only."""
    sandbox_id: str = request.path_params["id"]
    return {
        "port": port.port,
        "label": port.label,
        "listening": port.listening,
        "source": port.source,
        "public": port.public,
        "process": port.process,
        "proxy_url": f"{origin_of(request)}{proxy_prefix(sandbox_id, port.port)}/",
        "url": preview_url(request, service_of(request).settings.preview_domain, sandbox_id, port.port),
    }


async def list_all(request: Request) -> Response:
    found = await service_of(request).previews.list(workspace_of(request), request.path_params["id"])
    return answer([render_port(request, port) for port in found])


async def share(request: Request) -> Response:
    fields = await read_fields(request)
    port = fields.whole("port")
    public, label = fields.flag("public"), fields.value("label") or ""
    work = service_of(request).previews.share(workspace_of(request), request.path_params["id"], port, public=public, label=label)
    return answer(render_port(request, await patiently(request, work)), 201)


async def withdraw(request: Request) -> Response:
    port = parse_port(request.path_params["port"])
    await service_of(request).previews.withdraw(workspace_of(request), request.path_params["id"], port)
    return nothing()


async def make_link(request: Request) -> Response:
    """`url` works wherever the API does; `host_url` is the one for browsers, where the host names of previews lead here."""
    fields, sandbox_id = await read_fields(request), request.path_params["id"]
    port, ttl_s, paths = fields.whole("port"), fields.number("ttl_seconds", DEFAULT_TTL_S), fields.texts("paths")
    previews = service_of(request).previews
    token, link = await previews.make_link(workspace_of(request), sandbox_id, port, ttl_s=ttl_s, paths=paths)
    by_host = preview_url(request, service_of(request).settings.preview_domain, sandbox_id, port)
    first = link.paths[0] if link.paths else "/"
    return answer(
        {
            "url": f"{origin_of(request)}{link_prefix(token)}{first}",
            "host_url": f"{by_host.rstrip('/')}{first}?{LINK_PARAMETER.decode()}={token}" if by_host else None,
            "token": token,
            "sandbox_id": sandbox_id,
            "port": port,
            "paths": list(link.paths),
            "expires_at": timestamp(link.expires_at),
        },
        201,
    )


ROUTES = [
    call("GET", "/sandboxes/{id}/ports", list_all, "Ports that listen or are shared", gives=PORTS, errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/ports", share, "Share a port", body=SHARE, gives=SHARED_PORT, status=201, errors=OF_A_MACHINE),
    call("DELETE", "/sandboxes/{id}/ports/{port}", withdraw, "Stop sharing a port, and end its links", errors=OF_A_SANDBOX),
    call(
        "POST",
        "/sandboxes/{id}/preview-token",
        make_link,
        "A signed link to a port, for those who have no token",
        body=LINK,
        gives=SIGNED_LINK,
        status=201,
        errors=OF_A_SANDBOX,
    ),
    *PROXY_ROUTES,
]
