"""WebSockets as uvicorn speaks them, with bounds on what a client can make it hold.

uvicorn stops reading once a whole message waits. Two things come in beside messages and are not counted: pings, whose answers wait
for a client that may never read them, and fragments, of which a message may have any number, empty ones included.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from belljar.server.protocol import HANG_UP


class BoundedSocketProtocol(WebSocketsSansIOProtocol):
    """With HANG_UP in `scope["extensions"]`, as requests have it."""

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # else the opening was refused
            extensions: Any = self.scope["extensions"]
            extensions[HANG_UP] = self.transport.abort

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # with a refusal; uvicorn would log it as a fault of the application

    def handle_ping(self) -> None:
        """RFC 6455 lets an end answer the newest of several pings only; one that reads nothing gets no further answer."""
        pongs = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pongs)

    def handle_cont(self, event: Frame) -> None:
        """Joined as they come: then they cost what their bytes cost, which the limit on messages counts."""
        joined: Any = self.frames[0]
        if not isinstance(joined, bytearray):
            joined = bytearray(joined)
        joined += event.data
        self.frames = [joined]
        if event.fin:
            self.frames = [bytes(joined)]
            self.send_receive_event_to_app()
