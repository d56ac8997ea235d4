"""Previews by host name. Whatever comes for such a name ends here; the API behind it is never asked.

Private unless the port was made public. Then a link is needed, or a token of the workspace. A browser that comes with a link gets a
cookie for this host alone and is sent on without the link, so that it does not stay in the address bar, in history or in Referer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from belljar.errors import BelljarError, Forbidden, NotSupported, Unauthorized
from belljar.server.auth import service_of
from belljar.server.declaring import Passage
from belljar.server.previews.addresses import PreviewHost, find_preview, origin_of, scheme_of
from belljar.server.previews.headers import COOKIE, LINK_PARAMETER, OUR_TOKEN, without_our_parameters
from belljar.server.previews.pages import wants_html
from belljar.server.previews.serving import refuse, serve
from belljar.server.previews.target import Target
from belljar.server.previews.visitors import check_page
from belljar.service.links import Link
from belljar.service.previews import parse_port
from belljar.service.service import Service
from belljar.service.visits import OWNER, PUBLIC, Right
from belljar.service.workspace import Workspace

MAX_COOKIES = 8
BY_HOST = Passage("/{preview}", serve)
PRIVATE = "this preview is private: it needs a link from its owner, or the owner's token"


@dataclass(frozen=True)
class Admission:
    """Who was let in, and why. `link` is the one that came in the query, if that was how."""

    workspace: Workspace
    right: Right = OWNER
    link: Link | None = None


class PreviewHosts:
    """Takes requests for names of previews; all others go on to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        preview = find_preview(connection.headers.get("host", ""))
        if preview is None:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
        scope["endpoint"], scope["route"] = serve, BY_HOST  # what log and metrics call it
        try:
            await _answer(preview, connection, receive, send)
        except BelljarError as problem:
            await refuse(problem, scope, receive, send)


async def _answer(preview: PreviewHost, connection: HTTPConnection, receive: Receive, send: Send) -> None:
    scope, port = connection.scope, parse_port(preview.port)
    path, query = _path(scope), without_our_parameters(scope["query_string"])
    admitted = await _admit(connection, preview.sandbox_id, port, path)
    wanted = path + (b"?" + query if query else b"")
    in_a_browser = scope.get("method") in ("GET", "HEAD") and wants_html(connection.headers)
    if admitted.link is not None and in_a_browser:
        await _with_cookie(connection, admitted.link, wanted)(scope, receive, send)
        return
    await serve(Target(admitted.workspace, preview.sandbox_id, port, wanted, right=admitted.right), scope, receive, send)


async def _admit(connection: HTTPConnection, sandbox_id: str, port: int, path: bytes) -> Admission:
    """Nobody learns here whether a private sandbox exists who has nothing to show."""
    service = service_of(connection)
    if workspace := await service.previews.find_public(sandbox_id, port):
        return Admission(workspace, PUBLIC)
    if token := _own_token(connection):
        connection.scope["caller"] = caller = await service.access.check(token)
        workspace = service.workspace(caller.workspace)
        await workspace.get(sandbox_id)
        return Admission(workspace)
    if from_query := connection.query_params.get(LINK_PARAMETER.decode()):
        link = await _check(service, from_query, sandbox_id, port, path)
        return Admission(service.workspace(link.workspace), Right(link), link)
    refusal: BelljarError = Unauthorized(PRIVATE)
    for text in _cookies(connection):
        try:
            link = await _check(service, text, sandbox_id, port, path)
            check_page(connection, sandbox_id)
            return Admission(service.workspace(link.workspace), Right(link))
        except BelljarError as problem:
            refusal = problem
    raise refusal


async def _check(service: Service, text: str, sandbox_id: str, port: int, path: bytes) -> Link:
    link = await service.previews.check_link(text)
    if (link.sandbox_id, link.port) != (sandbox_id, port):
        raise Unauthorized("the link is for another preview")
    if not link.allows(path):
        raise Forbidden("the link does not cover this path")
    return link


def _cookies(connection: HTTPConnection) -> list[str]:
    """Our cookie may come more than once: a page of another preview can set one of that name for a domain above both."""
    parts = [part.partition("=") for header in connection.headers.getlist("cookie") for part in header.split(";")]
    return [value.strip() for name, _, value in parts if name.strip() == COOKIE][:MAX_COOKIES]


def _own_token(connection: HTTPConnection) -> str | None:
    for name in ("authorization", "x-api-key"):
        if found := OUR_TOKEN.search(connection.headers.get(name, "").encode("latin-1")):
            return found.group().decode()
    return None


def _path(scope: Scope) -> bytes:
    raw: bytes = scope["raw_path"]
    if not raw.startswith(b"/") or scope.get("method") == "CONNECT":
        raise NotSupported("a preview takes requests for a path only")
    return raw


def _with_cookie(connection: HTTPConnection, link: Link, wanted: bytes) -> Response:
    """The same address without the link, which the browser keeps in a cookie."""
    secure = scheme_of(connection) == "https"
    attributes = [
        f"{COOKIE}={connection.query_params[LINK_PARAMETER.decode()]}",
        "Path=/",
        "HttpOnly",
        f"Max-Age={max(0, int(link.expires_at - time.time()))}",
        # In a frame of another site a cookie is only kept if it is partitioned, which also keeps other sites from using it.
        "Secure; SameSite=None; Partitioned" if secure else "SameSite=Lax",
    ]
    # A path that begins with two slashes would be read as another host, and browsers take a backslash for a slash.
    origin = origin_of(connection) if wanted[1:2] in (b"/", b"\\") else ""
    headers = {
        "Location": origin + wanted.decode("latin-1"),
        "Set-Cookie": "; ".join(attributes),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
    }
    return Response(status_code=307, headers=headers)
