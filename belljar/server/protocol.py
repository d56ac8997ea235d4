"""HTTP/1.1 as uvicorn speaks it, plus two words: interim responses while an answer is being worked on, and hanging up.

The `pandastack` client gives up when nothing arrives for 30 seconds, whatever time limit its user asked for. Interim `100 Continue`
responses count as something, and leave the final status open. ASGI has no message for them, so the application finds a
function in its scope's extensions. h11 checks that none is sent after the real answer has begun.

An answer that is passed on may break off in the middle. The client must not take what it got for the whole, and one that no longer
reads must not hold what was already written: hanging up does both.
"""

from __future__ import annotations

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

INTERIM = "belljar.interim"
HANG_UP = "belljar.hang_up"


class InterimProtocol(H11Protocol):
    """uvicorn's h11 protocol with `belljar.interim` and `belljar.hang_up` in `scope["extensions"]`, both plain functions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        inner: Any = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("extensions", {}).update({INTERIM: self._send_interim, HANG_UP: self._hang_up})
            await inner(scope, receive, send)

        self.app = app

    def _send_interim(self) -> None:
        if self.transport.is_closing() or self.conn.our_state is not h11.SEND_RESPONSE:
            return
        output = self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        if output:
            self.transport.write(output)

    def _hang_up(self) -> None:
        self.transport.abort()
