"""Previews by path: below the API with a token of the workspace, and below a signed link without any."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from belljar.errors import BelljarError, Forbidden, NotFound, NotSupported, PortClosed
from belljar.server.auth import service_of, workspace_of
from belljar.server.declaring import Passage, SocketPassage, socket
from belljar.server.operation import OF_A_GUEST
from belljar.server.previews.addresses import link_prefix, proxy_prefix
from belljar.server.previews.headers import find_leave, without_our_parameters
from belljar.server.previews.rawtcp import carry
from belljar.server.previews.serving import refuse, serve
from belljar.server.previews.target import Target
from belljar.service.previews import parse_port
from belljar.service.visits import Right


class ByToken:
    """`/v1/sandboxes/{id}/proxy/{port}/…`: the dialect has found out who is calling."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _guarded(self._serve, scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        sandbox_id, port = scope["path_params"]["id"], parse_port(scope["path_params"]["port"])
        workspace = workspace_of(HTTPConnection(scope))
        await workspace.get(sandbox_id)
        prefix = proxy_prefix(sandbox_id, port)
        if path := await _path(prefix, scope, receive, send):
            await serve(Target(workspace, sandbox_id, port, path, prefix), scope, receive, send)


class ByLink:
    """`/v1/p/{link}/…`: the link says it all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _guarded(self._serve, scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        token, service = scope["path_params"]["token"], service_of(HTTPConnection(scope))
        link = await service.previews.check_link(token)
        prefix = link_prefix(token)
        if path := await _path(prefix, scope, receive, send):
            if not link.allows(path.partition(b"?")[0]):
                raise Forbidden("the link does not cover this path")
            if leave := find_leave(HTTPConnection(scope)):
                answer = Response(status_code=204)
                answer.raw_headers += leave
                await answer(scope, receive, send)
                return
            target = Target(service.workspace(link.workspace), link.sandbox_id, link.port, path, prefix, Right(link))
            await serve(target, scope, receive, send)


async def connect(websocket: WebSocket) -> None:
    """`/v1/sandboxes/{id}/ports/{port}/connect`: bytes over a WebSocket."""
    sandbox_id, port = websocket.path_params["id"], parse_port(websocket.path_params["port"])
    workspace = workspace_of(websocket)
    await workspace.get(sandbox_id)
    async with service_of(websocket).previews.connect(workspace, sandbox_id, port) as stream:
        await websocket.receive()  # websocket.connect
        await carry(stream, websocket.receive, websocket.send)


async def _guarded(work: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    scope["endpoint"] = serve  # what the metrics call it
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
    try:
        await work(scope, receive, send)
    except BelljarError as problem:
        await refuse(problem, scope, receive, send)


async def _path(prefix: str, scope: Scope, receive: Receive, send: Send) -> bytes | None:
    """What lies behind the prefix, as it was sent. None if the client was sent to the address with a slash, where links work."""
    raw, ours = scope["raw_path"], prefix.encode()
    if scope.get("method") == "CONNECT":
        raise NotSupported("a preview takes requests for a path only")
    if raw != ours and not raw.startswith(ours + b"/"):
        raise NotFound("there is no such path; write the sandbox and the port plainly")
    query = without_our_parameters(scope["query_string"])
    rest = raw[len(ours) :] + (b"?" + query if query else b"")
    if raw == ours:
        if scope.get("method") in ("GET", "HEAD"):
            await RedirectResponse(prefix + "/" + rest.decode("latin-1"), 307)(scope, receive, send)
            return None
        rest = b"/" + rest
    return bytes(rest)


def _both(path: str, endpoint: ASGIApp) -> list[BaseRoute]:
    return [Passage(path, endpoint), SocketPassage(path, endpoint)]


PROXY = "/sandboxes/{id}/proxy/{port}"
ABOUT = (
    'Binary messages are bytes. `{"eof":true}` says, in either direction, that no more will come that way. Closed with 1000 when '
    "both directions have ended, with 1011 when the connection broke."
)
ROUTES: list[BaseRoute] = [
    *_both(PROXY, ByToken()),
    *_both(PROXY + "/{rest:path}", ByToken()),
    socket(
        "/sandboxes/{id}/ports/{port}/connect",
        connect,
        "A connection to a port of the guest",
        about=ABOUT,
        errors=(*OF_A_GUEST, PortClosed),
    ),
]
LINK_ROUTES: list[BaseRoute] = [*_both("/v1/p/{token}", ByLink()), *_both("/v1/p/{token}/{rest:path}", ByLink())]
