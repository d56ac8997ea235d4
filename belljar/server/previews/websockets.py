"""A WebSocket to a server in a guest, message by message. The guest's server says first whether it takes it, and as what.

Pings are each side's own affair: this server pings its client, and answers the guest's pings. Messages, subprotocol, close codes
and reasons are passed on. At most one message is held in each direction.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from belljar.errors import BelljarError, Unauthorized
from belljar.server.answers import STALLED_S
from belljar.server.previews.guestsocket import BROKEN, NO_CODE, GuestSocket
from belljar.server.previews.headers import Header, from_guest
from belljar.server.previews.target import Target
from belljar.service.values import PortStream

SWITCHING = 101
NOT_TEXT, WITHDRAWN = 1007, 1008
OF_THE_HANDSHAKE = (b"sec-websocket-", b"content-length")


async def relay(target: Target, stream: PortStream, scope: Scope, receive: Receive, send: Send) -> None:
    """Raises BelljarError as long as the client has no answer. Later failures close the client's side with a code."""
    async with GuestSocket(target, stream) as guest:
        answer = await guest.open(HTTPConnection(scope))
        given = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
        headers = [header for header in from_guest(given, target) if not header[0].startswith(OF_THE_HANDSHAKE)]
        if answer.status_code != SWITCHING:
            await _refusal(answer.status_code, headers, bytes(answer.body or b""))(scope, receive, send)
            return
        await send({"type": "websocket.accept", "subprotocol": guest.subprotocol, "headers": headers})
        await _pass_on(guest, receive, send)


async def _pass_on(guest: GuestSocket, receive: Receive, send: Send) -> None:
    outward, inward = asyncio.create_task(_outward(guest, send)), asyncio.create_task(_inward(guest, receive))
    try:
        await asyncio.wait([outward, inward], return_when=asyncio.FIRST_COMPLETED)
        if inward.done():
            inward.result()  # the client has left, and the guest was told
        else:
            await close(send, *outward.result())
    finally:
        for task in (outward, inward):
            task.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)


async def close(send: Send, code: int, reason: str = "") -> None:
    """Say goodbye to a client that may no longer listen."""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(STALLED_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})


async def _outward(guest: GuestSocket, send: Send) -> tuple[int, str]:
    """From the guest to the client, until the guest's side ends; returns how."""
    try:
        async for message in guest.messages():
            kind = "text" if isinstance(message, str) else "bytes"
            async with asyncio.timeout(STALLED_S):
                await send({"type": "websocket.send", kind: message})
    except UnicodeDecodeError:
        return NOT_TEXT, "the server's text is not UTF-8"
    except Unauthorized as problem:
        return WITHDRAWN, problem.message
    except (BelljarError, TimeoutError, OSError):
        return BROKEN, "the connection to the sandbox broke"
    return guest.ended()


async def _inward(guest: GuestSocket, receive: Receive) -> None:
    """From the client to the guest, until the client has left."""
    while (message := await receive())["type"] != "websocket.disconnect":
        text, data = message.get("text"), message.get("bytes")
        try:
            await guest.send(text if text is not None else data or b"")
        except BelljarError:
            await asyncio.get_running_loop().create_future()  # the other task says how the guest left
    await guest.leave(message.get("code", NO_CODE), message.get("reason") or "")


def _refusal(status: int, headers: list[Header], body: bytes) -> Response:
    response = Response(body, status)
    response.raw_headers = headers
    return response
