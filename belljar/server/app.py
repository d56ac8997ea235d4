"""The application: dialects by their place in the URL, and what belongs to none of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount

from belljar.errors import HostError
from belljar.server.answers import answer
from belljar.server.auth import service_of
from belljar.server.closing import Closing
from belljar.server.declaring import call
from belljar.server.dialect import explaining
from belljar.server.health import Health
from belljar.server.metrics import CONTENT_TYPE, Metrics
from belljar.server.operation import plain
from belljar.server.own import routes as own
from belljar.server.pandastack.dialect import pandastack, render
from belljar.server.previews.hosts import PreviewHosts
from belljar.server.previews.paths import LINK_ROUTES
from belljar.server.reference import describe
from belljar.server.sandbase.dialect import sandbase
from belljar.server.shapes import answered, choice, text
from belljar.server.underway import Underway
from belljar.server.watching import Watched
from belljar.service.figures import take_figures
from belljar.service.service import Service

HEALTH = answered({"status": choice(["ok"])})
VERSION = answered({"name": text(), "version": text()})


def make_app(service: Service, closing: Closing, *, dev: bool) -> Starlette:
    """The application over an open service."""
    metrics, health, underway = Metrics(), Health(service), Underway()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        tasks = [
            asyncio.create_task(metrics.measure_lag(), name="event loop lag"),
            asyncio.create_task(underway.watch(service.access), name="tokens of open connections"),
        ]
        try:
            yield {"service": service, "dev": dev, "metrics": metrics, "health": health, "underway": underway}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    app = Starlette(
        routes=make_routes(),
        lifespan=lifespan,
        middleware=[Middleware(Watched, metrics=metrics, closing=closing, underway=underway), Middleware(PreviewHosts)],
        exception_handlers=explaining(render),
    )
    app.router.redirect_slashes = False
    return app


def make_routes() -> list[BaseRoute]:
    """All that is served, in the order in which it is looked for."""
    return [
        call("GET", "/healthz", healthz, "Whether the server is well", gives=HEALTH, errors=(HostError,), public=True),
        call("GET", "/version", show_version, "The server's version", gives=VERSION, public=True),
        call("GET", "/metrics", show_metrics, "Counters for Prometheus", gives=plain("Prometheus' text format."), public=True),
        *describe(_version()),
        *LINK_ROUTES,  # need no token: the link is one
        _mount("/v1", pandastack(call("GET", "/version", show_version, "The server's version", gives=VERSION), own.ROUTES)),
        _mount("", sandbase()),
    ]


def _mount(path: str, app: Starlette) -> Mount:
    mount = Mount(path, app=app)
    # A line break in a path is for the dialect to refuse, and would else hide the path from it.
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return mount


async def healthz(request: Request) -> Response:
    health: Health = request.state.health
    reasons = await health.reasons()
    if not reasons:
        return answer({"status": "ok"})
    return answer({"status": "unhealthy", "error": "; ".join(reasons), "code": HostError.code, "reasons": reasons}, 503)


async def show_version(request: Request) -> Response:
    return answer({"name": "belljar", "version": _version()})


async def show_metrics(request: Request) -> Response:
    metrics: Metrics = request.state.metrics
    figures = await take_figures(service_of(request).parts)
    return Response(metrics.render(figures, len(request.state.underway)), media_type=CONTENT_TYPE)


def _version() -> str:
    try:
        return version("belljar")
    except PackageNotFoundError:
        return "unknown"
