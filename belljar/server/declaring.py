"""How a noun declares its routes: `call` for HTTP, `socket` for a WebSocket.

    ROUTES = [
        call("POST", "/sandboxes/{id}/exec", run, "Run a command", body=EXEC, gives=EXEC_RESULT, errors=OF_A_COMMAND),
        call("DELETE", "/sandboxes/{id}", delete, "End a sandbox", errors=OF_A_SANDBOX),
    ]

The query is checked before the handler is called; the body when the handler reads it (`read_fields`). A handler that reads a field
which its route does not declare is a programming error and fails in every test that calls it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from belljar.errors import InvalidInput
from belljar.server.asking import read_query
from belljar.server.operation import MAX_JSON_BYTES, OPERATION, QUERY, Errors, Media, Operation
from belljar.server.shapes import Shape, record

Handler = Callable[[Request], Awaitable[Response]]
SocketHandler = Callable[[WebSocket], Awaitable[None]]
Gives = Shape | Media


class Call(Route):
    """A route with its declaration."""

    def __init__(self, operation: Operation, handler: Handler) -> None:
        @wraps(handler)
        async def checked(request: Request) -> Response:
            _admit(request, operation)
            return await handler(request)

        super().__init__(operation.path, checked, methods=[operation.method])
        self.operation = operation
        if operation.streams and self.methods:
            self.methods.discard("HEAD")  # which would stream to nobody

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        # Else a dialect at the root, which takes every path, would say that there is no such route.
        return (Match.FULL if match is Match.PARTIAL and self.operation.public else match), child


class Socket(WebSocketRoute):
    """A WebSocket with its declaration. An ordinary GET of it is told to upgrade."""

    def __init__(self, operation: Operation, handler: SocketHandler) -> None:
        @wraps(handler)
        async def checked(websocket: WebSocket) -> None:
            _admit(websocket, operation)
            await handler(websocket)

        super().__init__(operation.path, checked)
        self.operation = operation

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return super().matches(scope)
        match, child = super().matches({**scope, "type": "websocket"})
        return (Match.PARTIAL if match is Match.FULL and scope["method"] != "GET" else match), child

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().handle(scope, receive, send)
        elif scope["method"] == "GET":
            raise HTTPException(426, "this is a WebSocket: connect with `Upgrade: websocket`", {"Upgrade": "websocket"})
        else:
            raise HTTPException(405, headers={"Allow": "GET"})


class Passage(Route):
    """Requests of any method that are passed on to a sandbox: its own affair, which this API's description does not tell of."""


class SocketPassage(WebSocketRoute):
    """The same for WebSockets."""


def call(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    *,
    about: str = "",
    query: Shape | None = None,
    body: Shape | Media | None = None,
    max_body: int = MAX_JSON_BYTES,
    gives: Gives | tuple[Gives, ...] | None = None,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    errors: Errors = (),
    public: bool = False,
    places: Mapping[str, Shape] | None = None,
) -> Call:
    """A route. `gives` is the shape of its JSON, a Media, or several of them; None is 204. `about` adds to the summary."""
    answers = gives if isinstance(gives, tuple) else () if gives is None else (gives,)
    operation = Operation(
        method,
        path,
        summary,
        about=about,
        query=query or record({}),
        body=body,
        max_body=max_body,
        status=status or (200 if answers else 204),
        gives=tuple(one if isinstance(one, Media) else Media("application/json", one) for one in answers),
        headers=headers or {},
        errors=errors,
        public=public,
        places=places or {},
    )
    return Call(operation, handler)


def socket(
    path: str,
    handler: SocketHandler,
    summary: str,
    *,
    about: str,
    query: Shape | None = None,
    errors: Errors = (),
    places: Mapping[str, Shape] | None = None,
) -> Socket:
    """A WebSocket. `about` says which frames go which way. `errors` are those that are answered in place of the upgrade."""
    operation = Operation(
        "GET", path, summary, about=about, query=query or record({}), status=101, errors=errors, socket=True, places=places or {}
    )
    return Socket(operation, handler)


def _admit(connection: HTTPConnection, operation: Operation) -> None:
    """Refuse what the declaration does not allow, before the handler runs."""
    raw_path: bytes = connection.scope.get("raw_path") or b""
    if b"{rest:path}" not in operation.path.encode() and re.search(rb"%2f|%5c|%[01].|%7f", raw_path, re.IGNORECASE):
        raise InvalidInput("a path here has no encoded slash, backslash or control character")
    if connection.headers.get("content-encoding", "identity").lower() != "identity":
        # To ignore it would store what was packed under the name of what is in it.
        raise HTTPException(415, "a body here is sent as it is, without a Content-Encoding", {"Accept-Encoding": "identity"})
    scope: Any = connection.scope
    scope[OPERATION] = operation
    scope[QUERY] = read_query(connection, operation.query)
