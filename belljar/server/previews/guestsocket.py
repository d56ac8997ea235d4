"""The client's end of a WebSocket whose server is in a guest: websockets' own state machine over a connection to a port.

What is to be sent is written by a task of its own. So a guest that does not read does not keep us from reading what it sends, and
the answers to its pings pile up to a bound only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from starlette.requests import HTTPConnection
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState, InvalidStatus
from websockets.frames import EXTERNAL_CLOSE_CODES, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import CLOSED, Event
from websockets.uri import parse_uri

from belljar.errors import BelljarError, DeadlineExceeded, SandboxError, SandboxGone
from belljar.server.previews.headers import to_guest
from belljar.server.previews.target import Target
from belljar.server.sockets import MAX_PREVIEW_MESSAGE_BYTES
from belljar.service.values import PortStream

MAX_UNSENT_BYTES = 256 * 1024
HANDSHAKE_S = 60.0
NORMAL, GOING_AWAY, NO_CODE, BROKEN = 1000, 1001, 1005, 1011
MESSAGES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
# Nothing of what a guest does is worth a line in the log, least of all one per frame.
log = logging.getLogger(f"{__name__}.frames")
log.disabled = True


class GuestSocket:
    """`open` it, then read `messages` and `send`. Use it with `async with`."""

    def __init__(self, target: Target, stream: PortStream) -> None:
        self._target = target
        self._stream = stream
        self._protocol = ClientProtocol(parse_uri("ws://localhost/"), max_size=MAX_PREVIEW_MESSAGE_BYTES, logger=log)
        self._unsent = bytearray()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._writer = asyncio.create_task(self._write(), name="WebSocket to a guest")
        self._early: list[Event] = []

    async def __aenter__(self) -> GuestSocket:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    @property
    def subprotocol(self) -> str | None:
        return self._protocol.subprotocol

    async def open(self, connection: HTTPConnection) -> Response:
        """Shake hands. The guest's answer, which may be that it will not have a WebSocket here (any status but 101)."""
        request = self._protocol.connect()
        ours = [(name, request.headers[name]) for name in ("Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version")]
        if offered := connection.scope["subprotocols"]:
            ours.append(("Sec-WebSocket-Protocol", ", ".join(offered)))
            self._protocol.available_subprotocols = offered
        theirs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in to_guest(connection, self._target)]
        request.path, request.headers = self._target.path.decode("latin-1"), Headers([*theirs, *ours])
        self._protocol.send_request(request)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                answer = await self._handshake()
        except TimeoutError:
            waited = f"within {HANDSHAKE_S:g} s"
            raise DeadlineExceeded(f"port {self._target.port} did not answer a WebSocket's handshake {waited}") from None
        problem = self._protocol.handshake_exc
        if problem is not None and not (isinstance(problem, InvalidStatus) and 200 <= answer.status_code <= 599):
            raise self._no_server(problem)
        return answer

    async def _handshake(self) -> Response:
        await self._flush()
        while True:
            events = self._protocol.events_received()
            if events and isinstance(events[0], Response):
                self._early = events[1:]
                return events[0]
            if self._protocol.handshake_exc is not None:
                raise self._no_server(self._protocol.handshake_exc)
            await self._read()

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Whole messages, until the connection is over. UnicodeDecodeError for text that is none."""
        parts: list[bytes] = []
        is_text = False
        events = self._early
        while True:
            for event in events:
                if not isinstance(event, Frame) or event.opcode not in MESSAGES:
                    continue
                is_text = event.opcode is Opcode.TEXT or (is_text and event.opcode is Opcode.CONT)
                parts.append(bytes(event.data))
                if event.fin:
                    whole, parts = b"".join(parts), []
                    yield whole.decode() if is_text else whole
            if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None or self._protocol.state is CLOSED:
                return
            await self._read()
            events = self._protocol.events_received()

    async def send(self, message: str | bytes) -> None:
        """One message; waits until the guest has taken all of it."""
        try:
            if isinstance(message, str):
                self._protocol.send_text(message.encode("utf-8", "replace"))
            else:
                self._protocol.send_binary(message)
        except InvalidState:
            raise SandboxGone("the guest's server has closed this WebSocket") from None
        await self._flush()

    async def leave(self, code: int, reason: str) -> None:
        """Say how the client left, as far as there are words for it."""
        try:
            if code == NO_CODE:
                self._protocol.send_close()
            elif code in EXTERNAL_CLOSE_CODES or 3000 <= code < 5000:
                self._protocol.send_close(code, reason)
            else:
                self._protocol.send_close(GOING_AWAY)
            await self._flush()
            await self._stream.write_eof()
        except (BelljarError, InvalidState):
            pass  # the guest has left as well

    def ended(self) -> tuple[int, str]:
        """How the guest left, in words that may be passed on."""
        left, ours = self._protocol.close_rcvd, self._protocol.close_sent
        if left is not None:
            return (NORMAL, "") if left.code == NO_CODE else (left.code, left.reason)
        if self._protocol.parser_exc is not None and ours is not None:
            return ours.code, "the server broke the protocol"
        return BROKEN, "the server hung up"

    async def _read(self) -> None:
        if data := await self._stream.read():
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._collect()
        while len(self._unsent) > MAX_UNSENT_BYTES:
            await self._until_room()

    def _collect(self) -> None:
        self._unsent += b"".join(self._protocol.data_to_send())
        if self._unsent:
            self._news.set()

    async def _flush(self) -> None:
        self._collect()
        while self._unsent:
            await self._until_room()

    async def _until_room(self) -> None:
        self._room.clear()
        room = asyncio.ensure_future(self._room.wait())
        try:
            await asyncio.wait([room, self._writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
        if self._writer.done():
            self._writer.result()

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._unsent:
                data = bytes(self._unsent)
                await self._stream.write(data)
                del self._unsent[: len(data)]
                self._room.set()

    def _no_server(self, problem: Exception) -> SandboxError:
        return SandboxError(f"what listens on port {self._target.port} did not answer as a WebSocket server: {problem}")
