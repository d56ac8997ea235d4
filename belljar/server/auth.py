"""Who is calling: a token in `Authorization: Bearer`, in `X-API-Key`, or in `?access_token=` for what cannot set headers."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from belljar.errors import BelljarError, Forbidden, InvalidInput, Unauthorized
from belljar.server.problems import Problem, problem_of, respond
from belljar.service.access import Caller
from belljar.service.service import Service
from belljar.service.workspace import Workspace

Render = Callable[[Problem], Response]

LOCAL_CALLER = Caller("default", admin=True)


class Authenticate:
    """Lets a request through once its caller is known; the others are told why not, in the dialect's own shape."""

    def __init__(self, app: ASGIApp, render: Render) -> None:
        self._app = app
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            asking = HTTPConnection(scope)
            try:
                scope["caller"] = caller = await find_caller(asking)
                service_of(asking).rates.take(caller.workspace)
            except BelljarError as problem:
                # To a WebSocket this is the answer to its opening request.
                told = problem_of(problem, scope.get("method", "GET"), scope["path"])
                await respond(scope, told, self._render)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def find_caller(request: HTTPConnection) -> Caller:
    token = _token(request)
    if request.state.dev and (token is None or not token.startswith("pds_")):
        check_local(request)
        return LOCAL_CALLER
    if token is None:
        raise Unauthorized("missing token; send it as `Authorization: Bearer <token>` or `X-API-Key: <token>`")
    return await service_of(request).access.check(token)


def _token(request: HTTPConnection) -> str | None:
    for name in ("authorization", "x-api-key"):
        if len(request.headers.getlist(name)) > 1:  # whoever stands in between may have looked at the other one
            raise InvalidInput(f"{name} must be given only once")
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        return bearer.strip()
    return request.headers.get("x-api-key") or request.query_params.get("access_token") or None


def check_local(request: HTTPConnection) -> None:
    """Without a token only programs of this machine may call: not another host, and not a page in this machine's browser.

    A page's Origin is not sent with everything, so browsers also say whose page it was. That of a preview is another site's.
    """
    origin = request.headers.get("origin")
    names = [request.client.host if request.client else ""]
    if "host" in request.headers:  # a name of somewhere else may lead here
        names.append(_hostname(f"//{request.headers['host']}"))
    if origin is not None:
        names.append(_hostname(origin))
    own_page = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    if not own_page or not all(is_loopback(name) for name in names):
        raise Forbidden("without a token only this machine itself may call; send a token")


def _hostname(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def service_of(request: HTTPConnection) -> Service:
    service: Service = request.state.service
    return service


def caller_of(request: HTTPConnection) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


def workspace_of(request: HTTPConnection) -> Workspace:
    return service_of(request).workspace(caller_of(request).workspace)
