"""One HTTP request to a server in a guest, and its answer, both streamed: nothing is held but what is on its way.

The guest's side is HTTP/1.1 over one connection to its port, which ends with the answer. Sending and reading go on together, so a
server may answer while it still reads. A client that goes away ends both.
"""

from __future__ import annotations

import asyncio

import h11
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from belljar.errors import BelljarError, DeadlineExceeded, NotSupported, SandboxError
from belljar.server.answers import STALLED_S, until_gone
from belljar.server.asking import SILENT_S
from belljar.server.previews.headers import from_guest, to_guest
from belljar.server.previews.target import Target
from belljar.server.protocol import HANG_UP
from belljar.service.values import PortStream

MAX_HEAD_BYTES = 64 * 1024


async def exchange(target: Target, stream: PortStream, scope: Scope, receive: Receive, send: Send) -> None:
    """Raises BelljarError as long as nothing was answered. An answer that breaks off later hangs up on the client."""
    await _Exchange(target, stream, scope, receive, send).run()


class _Exchange:
    def __init__(self, target: Target, stream: PortStream, scope: Scope, receive: Receive, send: Send) -> None:
        self._target = target
        self._stream = stream
        self._scope = scope
        self._receive = receive
        self._send = send
        self._guest = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._begun = False

    async def run(self) -> None:
        await self._stream.write(self._request())
        download = asyncio.create_task(self._download())
        upload = asyncio.create_task(self._upload())
        try:
            await asyncio.wait([download, upload], return_when=asyncio.FIRST_COMPLETED)
            if download.done():
                download.result()
            else:
                upload.result()  # the client has gone, and nothing is left to do
        except (BelljarError, h11.ProtocolError, TimeoutError) as problem:
            if not self._begun:
                raise _broken(self._target, problem) from problem
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)
            await self._hang_up()
        finally:
            for task in (download, upload):
                task.cancel()
            await asyncio.gather(download, upload, return_exceptions=True)

    def _request(self) -> bytes:
        request = Request(self._scope)
        headers = to_guest(request, self._target)
        if "transfer-encoding" in request.headers:
            headers = [header for header in headers if header[0] != b"content-length"]
            headers.append((b"transfer-encoding", b"chunked"))
        headers.append((b"connection", b"close"))
        try:
            event = h11.Request(method=request.method, target=self._target.path, headers=headers)
        except h11.LocalProtocolError as problem:
            raise NotSupported(f"the request cannot be passed on: {problem}") from None
        return self._guest.send(event) or b""

    async def _upload(self) -> None:
        """The body, and then until the client has gone."""
        more = True
        while more:
            message = await self._next_piece()
            if message["type"] == "http.disconnect":
                return
            more = message.get("more_body", False)
            data = self._guest.send(h11.Data(data=message.get("body", b""))) or b""
            if not more:
                data += self._guest.send(h11.EndOfMessage()) or b""
            try:
                await self._stream.write(data)
            except BelljarError:
                break  # it reads no further; its answer says why, or the other task learns that there is none
        await until_gone(self._receive)

    async def _next_piece(self) -> Message:
        """A client that leaves its own request unfinished is waited for only if it has an answer to wait for itself."""
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    return await self._receive()
            except TimeoutError:
                if not self._begun:
                    raise DeadlineExceeded(f"nothing of the request's body has come for {SILENT_S:.0f} s") from None

    async def _download(self) -> None:
        while True:
            event = self._guest.next_event()
            if event is h11.NEED_DATA:
                self._guest.receive_data(await self._stream.read())
            elif isinstance(event, h11.Response):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                await self._pass_on(bytes(event.data), more=True)
            elif isinstance(event, h11.EndOfMessage):
                await self._pass_on(b"", more=False)
                return
            elif not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise h11.RemoteProtocolError("it ended the connection without an answer")

    async def _begin(self, response: h11.Response) -> None:
        if response.status_code > 599:
            raise h11.RemoteProtocolError(f"{response.status_code} is no status")
        headers = from_guest(response.headers.raw_items(), self._target)
        self._begun = True
        async with asyncio.timeout(STALLED_S):
            await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})

    async def _pass_on(self, data: bytes, *, more: bool) -> None:
        async with asyncio.timeout(STALLED_S):
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _hang_up(self) -> None:
        if hang_up := self._scope.get("extensions", {}).get(HANG_UP):
            hang_up()
            await until_gone(self._receive)


def _broken(target: Target, problem: Exception) -> BelljarError:
    if isinstance(problem, BelljarError) and problem.code != "sandbox_error":
        return problem
    reason = problem.message if isinstance(problem, BelljarError) else str(problem)
    where = f"port {target.port} of sandbox {target.sandbox_id}"
    return SandboxError(f"what listens on {where} did not answer as a web server: {reason}")
