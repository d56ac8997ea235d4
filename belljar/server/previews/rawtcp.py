"""Bytes to and from a port of a guest over a WebSocket, for any protocol.

Binary messages are bytes. The text message `{"eof":true}` says, in either direction, that no more bytes will come that way. The
WebSocket is closed with 1000 when both directions have ended, with 1011 when the connection broke, with 1003 for any other text.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Send

from belljar.errors import BelljarError
from belljar.server.answers import STALLED_S
from belljar.server.previews.websockets import close
from belljar.service.values import PortStream

EOF = '{"eof":true}'
NORMAL, UNSUPPORTED, BROKEN = 1000, 1003, 1011


async def carry(stream: PortStream, receive: Receive, send: Send) -> None:
    """Accept, and carry bytes until either side has had enough."""
    await send({"type": "websocket.accept"})
    all_sent = asyncio.Event()
    outward = asyncio.create_task(_outward(stream, send, all_sent))
    inward = asyncio.create_task(_inward(stream, receive, all_sent))
    try:
        done, _ = await asyncio.wait([outward, inward], return_when=asyncio.FIRST_COMPLETED)
        code = done.pop().result()
        if code is not None:
            await close(send, code)
    finally:
        for task in (outward, inward):
            task.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)


async def _outward(stream: PortStream, send: Send, all_sent: asyncio.Event) -> int | None:
    """From the guest to the client, until both have sent all they had."""
    try:
        while data := await stream.read():
            async with asyncio.timeout(STALLED_S):
                await send({"type": "websocket.send", "bytes": data})
        await send({"type": "websocket.send", "text": EOF})
    except (BelljarError, TimeoutError, OSError):
        return BROKEN
    await all_sent.wait()
    return NORMAL


async def _inward(stream: PortStream, receive: Receive, all_sent: asyncio.Event) -> int | None:
    """From the client to the guest, until the client has left."""
    while (message := await receive())["type"] != "websocket.disconnect":
        data = message.get("bytes")
        if data is None and message.get("text") != EOF:
            return UNSUPPORTED
        try:
            if data is not None:
                await stream.write(data)
            else:
                await stream.write_eof()
                all_sent.set()
        except BelljarError:
            return BROKEN
    return None
