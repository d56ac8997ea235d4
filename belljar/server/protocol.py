"""HTTP/1.1 as uvicorn speaks it, plus two words and a few bounds.

The first word: interim responses while an answer is being worked on. The `pandastack` client gives up when nothing arrives for 30
seconds, whatever time limit its user asked for. Interim `100 Continue` responses count as something, and leave the final status
open. ASGI has no message for them, so the application finds a function in its scope's extensions. h11 checks that none is sent
after the real answer has begun.

The second: hanging up. An answer that is passed on may break off in the middle. The client must not take what it got for the
whole, and one that no longer reads must not hold what was already written.

The bounds: a connection must bring a whole request head in time; a client that goes on sending a body which nobody wants any
more, or takes nothing of its answer, is cut off; there are only so many connections. What is no HTTP is told so in the shape of
every other error.
"""

from __future__ import annotations

import json
import re
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

INTERIM = "belljar.interim"
HANG_UP = "belljar.hang_up"
MAX_HEAD_BYTES = 32 * 1024
# A request line and headers must be complete after so long, and a body that came with an answered request must end.
HEAD_S = 30.0
LINGER_S = 10.0
# A client that takes nothing of its answer for so long is gone, whatever its connection says.
STALLED_S = 300.0
# How long a refused client may take to read why.
LAST_WORD_S = 2.0
WEBSOCKET_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
# The rest of the descriptors is for sandboxes: each has some of its own.
CONNECTIONS_OF_DESCRIPTORS = 0.5


class _Connection(h11.Connection):
    """Stricter than h11, and remembers what was wrong, which uvicorn does not tell."""

    status = 400
    reason = "the request is not HTTP"

    def next_event(self) -> Any:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_head(event)
            return event
        except h11.RemoteProtocolError as problem:
            # What h11 quotes of the request may be a token.
            said = str(problem).partition(": bytearray(")[0]
            self.status, self.reason = problem.error_status_hint, f"the request cannot be read: {said}"
            raise


def _check_head(head: h11.Request) -> None:
    """What h11 lets pass, and what means different things to different programs on the way."""
    headers = {name.lower(): value for name, value in head.headers}
    if head.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("only HTTP/1.0 and HTTP/1.1 are spoken here")
    if len(head.target) + sum(len(name) + len(value) + 4 for name, value in head.headers) > MAX_HEAD_BYTES:
        raise h11.RemoteProtocolError(f"its head has more than {MAX_HEAD_BYTES} bytes", error_status_hint=431)
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise h11.RemoteProtocolError("it has both a Content-Length and a Transfer-Encoding")
    if headers.get(b"upgrade", b"").lower() == b"websocket":
        key = headers.get(b"sec-websocket-key", b"")
        if head.method != b"GET" or headers.get(b"sec-websocket-version") != b"13" or not WEBSOCKET_KEY.fullmatch(key):
            raise h11.RemoteProtocolError("a WebSocket is opened with GET, a Sec-WebSocket-Key and Sec-WebSocket-Version 13")


class InterimProtocol(H11Protocol):
    """uvicorn's h11 protocol with bounds, and with two plain functions in `scope["extensions"]`: INTERIM and HANG_UP."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._timer: Any = None
        self._stalled: Any = None
        self._refused = False
        inner: Any = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("extensions", {}).update({INTERIM: self._send_interim, HANG_UP: self._hang_up})
            _make_relative(scope)
            await inner(scope, receive, self._closing_unread(send))

        self.app = app

    def _send_interim(self) -> None:
        if self.transport.is_closing() or self.conn.our_state is not h11.SEND_RESPONSE or self.conn.their_http_version == b"1.0":
            return
        output = self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        if output:
            self.transport.write(output)

    def _hang_up(self) -> None:
        self.transport.abort()

    def _closing_unread(self, send: Any) -> Any:
        """A client that waits for leave to send its body, and gets an answer instead, may send it or not: only an end is clear."""

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and self.conn.they_are_waiting_for_100_continue:
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        return sending

    # -- writing ------------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(None)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def _watch_reader(self, before: int | None) -> None:
        """Cut off a client that has taken nothing for a while: what waits for it is memory."""
        waiting = self.transport.get_write_buffer_size()
        if waiting == before:
            self.transport.abort()
        else:
            self._stalled = self.loop.call_later(STALLED_S, self._watch_reader, waiting)

    # -- bounds -------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _most_connections():
            self._refuse(503, "the server has too many connections; try again in a moment")
            return
        self._limit(HEAD_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        theirs, ours = self.conn.their_state, self.conn.our_state
        if theirs is ours is h11.IDLE:  # not yet a whole head
            if self._timer is None and self.timeout_keep_alive_task is None:
                self._limit(HEAD_S, self._head_is_late)
        elif theirs is not h11.SEND_BODY or ours is not h11.DONE:
            self._unlimit()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            self._limit(LINGER_S, self.transport.close)

    def _limit(self, seconds: float, then: Any) -> None:
        self._unlimit()
        self._timer = self.loop.call_later(seconds, then)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._refuse(408, f"the head of the request has not come within {HEAD_S:.0f} s", "too_slow")

    def send_400_response(self, msg: str) -> None:
        status, reason = getattr(self.conn, "status", 400), getattr(self.conn, "reason", msg)
        self._refuse(status if 400 <= status < 500 else 400, reason)

    def _refuse(self, status: int, message: str, code: str = "invalid_input") -> None:
        self._refused = True
        if self.cycle is not None:
            self.cycle.disconnected = True  # what is under way has nobody to answer to
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": message[:500], "code": code, "message": message[:500]}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
            if status == 503:
                headers.append((b"retry-after", b"5"))
            for event in (
                h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        # To close with bytes unread would reset the connection, and the answer with it.
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._limit(LAST_WORD_S, self.transport.close)


def _make_relative(scope: Any) -> None:
    """A proxy's form of the target, with scheme and host before the path, means the same."""
    for scheme in (b"http://", b"https://"):
        if scope["raw_path"].lower().startswith(scheme):
            skipped = len(scheme) + (scope["raw_path"][len(scheme) :] + b"/").find(b"/")
            scope["raw_path"] = scope["raw_path"][skipped:] or b"/"
            path = scope["path"]
            rest = len(scheme) + (path[len(scheme) :] + "/").find("/")
            scope["path"] = path[rest:] or "/"


def _most_connections() -> int:
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * CONNECTIONS_OF_DESCRIPTORS)
