"""The API's description: for programs `/openapi.json`, for people `/docs`. It needs no token, because it tells about nobody."""

from __future__ import annotations

import json
from functools import lru_cache

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from belljar.server.declaring import Call, call
from belljar.server.openapi import document
from belljar.server.operation import plain
from belljar.server.page import render_page
from belljar.server.shapes import ANYTHING

# The page has its style inside, runs no script and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

PAGE = plain("A page without scripts.", "text/html")


def describe(version: str) -> list[Call]:
    """The two routes. Both are made at the first call, when all routes are known, and kept: anyone may ask for them."""

    @lru_cache(maxsize=1)
    def described(app: Starlette) -> tuple[str, str]:
        found = document(app.routes, version)
        return json.dumps(found, separators=(",", ":")), render_page(found)

    async def openapi(request: Request) -> Response:
        return Response(described(request.app)[0], media_type="application/json")

    async def docs(request: Request) -> Response:
        return HTMLResponse(described(request.app)[1], headers={"Content-Security-Policy": POLICY})

    return [
        call("GET", "/openapi.json", openapi, "This description, for programs", gives=ANYTHING, public=True),
        call("GET", "/docs", docs, "This description, for people", gives=PAGE, public=True),
    ]
