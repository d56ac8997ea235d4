"""One wire dialect: its routes behind authentication, and every error in its own shape."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from belljar.errors import BelljarError
from belljar.server.auth import Authenticate, Render, service_of
from belljar.server.patience import ClientGone
from belljar.server.problems import RunFailed, problem_of


def make_dialect(routes: Sequence[BaseRoute], render: Render) -> Starlette:
    def explain(request: Request, error: Exception) -> Response:
        home = str(service_of(request).settings.home)
        return render(problem_of(error, request.method, request.url.path, home))

    def nobody(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # never read: the connection is closed

    handlers = {BelljarError: explain, HTTPException: explain, RunFailed: explain, ClientGone: nobody, Exception: explain}
    app = Starlette(
        routes=list(routes),
        middleware=[Middleware(Authenticate, render=render)],
        exception_handlers=handlers,
    )
    app.router.redirect_slashes = False
    return app
