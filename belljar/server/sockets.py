"""WebSockets: messages of bounded size, an end for those who no longer read or answer, and the last word when something fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from belljar.errors import InvalidInput
from belljar.server.answers import STALLED_S
from belljar.server.asking import parse_json

# Each is held in memory as a whole. Those of previews belong to others, who may want larger ones.
MAX_MESSAGE_BYTES, MAX_PREVIEW_MESSAGE_BYTES = 1024 * 1024, 16 * 1024 * 1024
# A client that answers no ping for so long is gone. Not sooner: one whose bytes nobody takes is not read from, pongs included.
PING_EVERY_S, SILENT_S = 20.0, 120.0
# Close codes of RFC 6455: all is well; a message is too big; we met a condition that prevents us from going on.
DONE, TOO_BIG, FAILED = 1000, 1009, 1011


def is_open(socket: WebSocket) -> bool:
    return socket.application_state is WebSocketState.CONNECTED and socket.client_state is WebSocketState.CONNECTED


async def receive(socket: WebSocket) -> bytes | dict[str, Any]:
    """The next message: bytes, or the JSON object of a text. Raises WebSocketDisconnect at the end."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000), message.get("reason"))
    data: bytes | None = message.get("bytes")
    if len(data if data is not None else message.get("text") or "") > MAX_MESSAGE_BYTES:
        await socket.close(TOO_BIG)
        raise WebSocketDisconnect(TOO_BIG, "the message is too big")
    return data if data is not None else parse(message.get("text") or "")


def parse(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        raise InvalidInput("a text message must be a JSON object, and this one is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"a text message must be a JSON object, not {type(value).__name__}")
    return value


async def send(socket: WebSocket, message: bytes | dict[str, Any]) -> None:
    """Waits while the client is slow, and counts one that takes nothing for too long as gone."""
    try:
        async with asyncio.timeout(STALLED_S):
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_text(json.dumps(message))
    except TimeoutError:
        raise WebSocketDisconnect(1006, "the client does not read") from None


async def end_with(socket: WebSocket, message: dict[str, Any], code: int = DONE) -> None:
    """The last message, and the end."""
    await send(socket, message)
    await socket.close(code)
