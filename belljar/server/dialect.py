"""One wire dialect: its routes behind authentication, and every error in its own shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from belljar.errors import BelljarError
from belljar.server.auth import Authenticate, Render, service_of
from belljar.server.patience import ClientGone
from belljar.server.problems import RunFailed, problem_of, respond
from belljar.server.shapes import Shape
from belljar.server.sockets import FAILED, end_with, is_open


def make_dialect(routes: Sequence[BaseRoute], render: Render, error_shape: Shape) -> Starlette:
    app = Starlette(
        routes=list(routes),
        middleware=[Middleware(Authenticate, render=render)],
        exception_handlers=explaining(render),
    )
    app.router.redirect_slashes = False
    app.router.default = _nowhere
    app.state.error_shape = error_shape  # for whoever describes the routes
    return app


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Also for a WebSocket, which Starlette would only close."""
    raise HTTPException(404)


def explaining(render: Render) -> dict[Any, Any]:
    """Handlers that tell every error in one shape."""

    async def explain(asking: Request | WebSocket, error: Exception) -> Response | None:
        home = str(service_of(asking).settings.home)
        problem = problem_of(error, asking.scope.get("method", "WebSocket"), asking.scope["path"], home)
        if isinstance(asking, WebSocket) and is_open(asking):
            await end_with(asking, {"error": problem.message, "code": problem.code}, FAILED)
            return None
        answer = respond(asking.scope, problem, render)
        if isinstance(error, HTTPException):
            answer.headers.update(error.headers or {})
        if problem.status == 405:
            answer.headers["Allow"] = ", ".join(sorted(_allowed(asking)))
        return answer

    async def nobody(asking: Request | WebSocket, error: Exception) -> Response | None:
        # Never read: the connection is closed.
        return Response(status_code=499) if isinstance(asking, Request) else None

    handlers: dict[Any, Any] = {BelljarError: explain, HTTPException: explain, RunFailed: explain, Exception: explain}
    return handlers | {ClientGone: nobody, WebSocketDisconnect: nobody}


def _allowed(asking: HTTPConnection) -> set[str]:
    """The methods of the route that was meant; a route with a placeholder may take its path for a name."""
    routes = [route for route in asking.app.routes if not isinstance(route, Mount)]
    met = [route for route in routes if route.matches(asking.scope)[0] is not Match.NONE]
    paths = [getattr(route, "path", "") for route in met]
    meant = [route for route, path in zip(met, paths, strict=True) if path == paths[0]]
    return {method for route in meant for method in getattr(route, "methods", None) or ("GET",)}
