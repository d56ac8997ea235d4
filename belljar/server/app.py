"""The application: dialects by their place in the URL, and what belongs to none of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from belljar.server.answers import answer
from belljar.server.auth import service_of
from belljar.server.metrics import CONTENT_TYPE, Counted, Metrics
from belljar.server.pandastack.dialect import pandastack
from belljar.server.previews.hosts import PreviewHosts
from belljar.server.previews.paths import LINK_ROUTES
from belljar.server.sandbase.dialect import sandbase
from belljar.service.service import Service


def make_app(service: Service, *, dev: bool) -> Starlette:
    """The application over an open service."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        yield {"service": service, "dev": dev, "metrics": metrics}

    routes = [
        Route("/healthz", healthz),
        Route("/version", show_version),
        Route("/metrics", show_metrics),
        *LINK_ROUTES,  # need no token: the link is one
        Mount("/v1", app=pandastack(show_version)),
        Mount("", app=sandbase()),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Counted, metrics=metrics), Middleware(PreviewHosts)])
    app.router.redirect_slashes = False
    return app


async def healthz(request: Request) -> Response:
    await service_of(request).states()  # the records can be read
    return answer({"status": "ok"})


async def show_version(request: Request) -> Response:
    return answer({"name": "belljar", "version": _version()})


async def show_metrics(request: Request) -> Response:
    metrics: Metrics = request.state.metrics
    return Response(metrics.render(await service_of(request).states()), media_type=CONTENT_TYPE)


def _version() -> str:
    try:
        return version("belljar")
    except PackageNotFoundError:
        return "unknown"


