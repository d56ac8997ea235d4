"""Around every request: an id that follows it into the log and back to the client, one line of log, and the counters."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from belljar.server.answers import answer
from belljar.server.closing import Closing, during
from belljar.server.logbook import REQUEST_ID
from belljar.server.metrics import Metrics
from belljar.server.underway import Underway

log = logging.getLogger(__name__)

ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
# What clients that went away before there was an answer are counted under.
GONE = 499


class Watched:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, closing: Closing, underway: Underway) -> None:
        self._app = app
        self._metrics = metrics
        self._closing = closing
        self._underway = underway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        watch = _Watch(scope, receive, send)
        marked = REQUEST_ID.set(watch.id)
        self._underway.add(scope)
        try:
            with during(self._closing):
                await self._app(scope, watch.receive, watch.send)
        except Exception as problem:
            # The dialect has answered already, as a rule; there is nobody above who could do more than log it again.
            log.error("%s while answering %s", type(problem).__name__, watch.route, exc_info=problem)
            if watch.status == 0 and scope["type"] == "http":
                broken = {"error": "internal error; the server's log has the details", "code": "internal"}
                await answer(broken, 500)(scope, receive, watch.send)
        finally:
            self._underway.discard(scope)
            self._finish(watch)
            REQUEST_ID.reset(marked)

    def _finish(self, watch: _Watch) -> None:
        seconds = time.monotonic() - watch.began
        status = watch.status or GONE
        self._metrics.count(watch.route, watch.method, status, seconds, watch.scope.get("problem"))
        level = logging.WARNING if status >= 500 else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s %s %s", watch.method, watch.route, status, extra={"fields": watch.facts(status, seconds)})


class _Watch:
    """One request as it is seen from outside."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.id = _request_id(scope)
        self.began = time.monotonic()
        self.status = self.bytes_in = self.bytes_out = 0

    @property
    def method(self) -> str:
        if self.scope["type"] == "websocket":
            return "WEBSOCKET"
        return self.scope["method"] if self.scope["method"] in METHODS else "other"

    @property
    def route(self) -> str:
        """The path with its placeholders: ids would be endless labels. A request that no route answered has none."""
        path = getattr(self.scope.get("route"), "path", None)
        endpoint = self.scope.get("endpoint")
        if path is None or getattr(endpoint, "__name__", None) is None:
            return "none"
        return f"{self.scope.get('root_path', '')}{path}"

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body") or message.get("bytes") or message.get("text") or b"")
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            self.status = message.get("status", 101)
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self.id.encode())]}
        elif kind == "websocket.close" and not self.status:
            self.status = 403
        self.bytes_out += len(message.get("body") or message.get("bytes") or message.get("text") or b"")
        await self._send(message)

    def facts(self, status: int, seconds: float) -> dict[str, Any]:
        caller, client = self.scope.get("caller"), self.scope.get("client")
        facts = {
            "method": self.method,
            "route": self.route,
            "status": status,
            "duration_ms": round(seconds * 1000, 2),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "workspace": getattr(caller, "workspace", None),
            "token": getattr(caller, "token", None),
            "sandbox": self.scope.get("path_params", {}).get("id"),
            "code": self.scope.get("problem"),
            "reason": self.scope.get("reason"),
            "client": client[0] if client else None,
        }
        return {name: value for name, value in facts.items() if value is not None}


def _request_id(scope: Scope) -> str:
    """The client's own, if it is one that can be written anywhere; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and ID.fullmatch(value):
            return str(value.decode("ascii"))
    return f"req-{secrets.token_hex(8)}"
