"""A request that may be made: connect to the port, pass it on, and say what went wrong in words that visitors may read."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from belljar.errors import BelljarError, PortClosed
from belljar.server.auth import service_of
from belljar.server.previews.exchange import exchange
from belljar.server.previews.pages import explain
from belljar.server.previews.target import Target
from belljar.server.previews.websockets import relay
from belljar.server.problems import problem_of


async def serve(target: Target, scope: Scope, receive: Receive, send: Send) -> None:
    """HTTP or WebSocket, whichever the request is."""
    previews = service_of(HTTPConnection(scope)).previews
    try:
        async with previews.connect(target.workspace, target.sandbox_id, target.port, target.right) as stream:
            if scope["type"] == "websocket":
                await relay(target, stream, scope, receive, send)
            else:
                await exchange(target, stream, scope, receive, send)
    except BelljarError as problem:
        await refuse(_seen_from_outside(problem, target), scope, receive, send)


async def refuse(problem: BelljarError, scope: Scope, receive: Receive, send: Send) -> None:
    connection = HTTPConnection(scope)
    home = str(service_of(connection).settings.home)
    response = explain(problem_of(problem, scope.get("method", "GET"), scope["path"], home), connection.headers)
    await response(scope, receive, send)


def _seen_from_outside(problem: BelljarError, target: Target) -> BelljarError:
    """What else listens in the sandbox is for its owner, not for everyone who has a link."""
    if isinstance(problem, PortClosed):
        return PortClosed(f"nothing listens on port {target.port} of sandbox {target.sandbox_id}")
    return problem
