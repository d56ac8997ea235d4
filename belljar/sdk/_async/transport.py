"""How requests reach the server: one place for keys, time limits, retries, and what can go wrong on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from websockets.exceptions import InvalidProxy, InvalidStatus, ProxyError, WebSocketException

from belljar.sdk._async.adaptors import (
    CancelEvent,
    Content,
    Flow,
    HttpClients,
    WebSocket,
    call,
    cancelled_within,
    check_cancel,
    open_websocket,
    pieces_of,
)
from belljar.sdk.contents import as_bytes
from belljar.sdk.environment import Place
from belljar.sdk.errors import CreateCancelled, Lost, PandastackError, error_in_stream
from belljar.sdk.requests import (
    STREAM_SILENCE_S,
    Call,
    address,
    check_object,
    decode,
    encode,
    http_options,
    payload_of,
    refusal,
    time_limits,
    translate,
    unusable_proxy,
    websocket_url,
)
from belljar.sdk.retrying import CreateRetryEvent, parse_retry_after, wait_before_retry
from belljar.sdk.streams import EventReader, StreamEvent

logger = logging.getLogger("belljar.sdk")

MAX_REFUSAL_BYTES = 64 * 1024
JSON, BYTES = "application/json", "application/octet-stream"


class AsyncTransport:
    """Requests to one server. `retry_s` is how long a create that does not fit may be tried again."""

    def __init__(
        self, place: Place, timeout: float, retry_s: float, on_create_retry: Callable[[CreateRetryEvent], object] | None
    ) -> None:
        self.place = place
        self.timeout = timeout
        self.retry_s = retry_s
        self.on_create_retry = on_create_retry
        self._http = HttpClients(**http_options(place, timeout))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        content: Content | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The decoded answer; None if it has no body."""
        response = await self.send(method, path, body, params=params, content=content, timeout=timeout)
        return decode(response.status_code, response.content, Call(method, path), self.place)

    async def object(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        content: Content | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """The same where an object is due."""
        found = await self.json(method, path, body, params=params, content=content, timeout=timeout)
        return check_object(found, Call(method, path), self.place)

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        content: Content | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """The answer, read to its end. Anything but 2xx is raised; one that came too soon after others is sent again."""
        patience = _Patience(Call(method, path), self.place, self.retry_s, create=False)
        while True:
            response = await self._attempt(method, path, body, params, content, timeout)
            if response.is_success:
                return response
            event = patience.consider(response, response.content)
            # What is streamed can be sent only once.
            if event is None or not (content is None or isinstance(content, bytes | str)):
                raise patience.refused
            await cancelled_within(None, event.delay_seconds)

    async def create(
        self, path: str, body: Mapping[str, Any] | None, *, timeout: float | None = None, cancel: CancelEvent | None = None
    ) -> dict[str, Any]:
        """A POST that makes something, and is sent again while the server refuses it for want of room."""
        check_cancel(cancel)
        patience = _Patience(Call("POST", path), self.place, self.retry_s, create=True)
        while True:
            if cancel is not None and cancel.is_set():
                raise patience.cancelled() from patience.last
            response = await self._attempt("POST", path, body, None, None, timeout)
            if response.is_success:
                made = decode(response.status_code, response.content, patience.asked, self.place)
                return check_object(made, patience.asked, self.place)
            event = patience.consider(response, response.content)
            if event is None:
                raise patience.refused
            await call(self.on_create_retry, event)
            if await cancelled_within(cancel, event.delay_seconds):
                raise patience.cancelled() from patience.last

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        accept: str = "*/*",
        silence_s: float = STREAM_SILENCE_S,
    ) -> AsyncIterator[Flow[bytes]]:
        """The body of an answer as it comes. Leaving early closes the connection."""
        asked, limits = Call(method, path), time_limits(silence_s)
        url, content = address(self.place, path, params), encode(body)
        headers = {"Accept": accept} if content is None else {"Accept": accept, "Content-Type": JSON}
        patience = _Patience(asked, self.place, self.retry_s, create=False)
        while True:
            try:
                http = self._http.get()
                request = http.build_request(method, url, content=content, headers=headers, timeout=limits)
                response = await http.send(request, stream=True)
            except (httpx.HTTPError, httpx.InvalidURL) as problem:
                raise translate(problem, asked, self.place) from problem
            try:
                pieces = self._pieces(response, asked)
                if response.is_success:
                    yield pieces
                    return
                event = patience.consider(response, await _some(pieces))
            except PandastackError as problem:
                if request_id := response.headers.get("X-Request-Id"):
                    problem.details.setdefault("request_id", request_id)
                raise
            finally:
                await response.aclose()
            if event is None:
                raise patience.refused
            await cancelled_within(None, event.delay_seconds)

    async def _pieces(self, response: httpx.Response, asked: Call) -> Flow[bytes]:
        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.HTTPError as problem:
            raise translate(problem, asked, self.place) from problem

    async def events(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Flow[StreamEvent]:
        """Server-sent events. One that tells of a failure is raised."""
        reader = EventReader()
        async with self.stream(method, path, body, params=params, accept="text/event-stream") as pieces:
            async for piece in pieces:
                for event in reader.feed(piece):
                    # "error" with a kind is a cell's own; what ends its stream has another name.
                    if event.name == "failed" or (event.name == "error" and "kind" not in event.data):
                        raise error_in_stream(event.data, method=method, path=path)
                    yield event

    async def websocket(self, path: str, params: Mapping[str, Any]) -> WebSocket:
        asked, headers = Call("GET", path), {"Authorization": f"Bearer {self.place.key}"} if self.place.key else {}
        try:
            return await open_websocket(websocket_url(self.place, path, params), headers, self.timeout, not self.place.local)
        except InvalidStatus as problem:
            answer = problem.response
            headers_seen = httpx.Headers(list(answer.headers.raw_items()))
            raise refusal(answer.status_code, headers_seen, bytes(answer.body or b""), asked, self.place) from None
        except (InvalidProxy, ImportError, ValueError) as problem:
            raise unusable_proxy(problem) from problem
        except ProxyError as problem:
            raise translate(httpx.ProxyError(str(problem)), asked, self.place) from problem
        except WebSocketException as problem:
            raise Lost(f"{self.place.url} does not speak WebSocket at {path}: {problem}") from problem
        except OSError as problem:  # TimeoutError is one
            raise translate(httpx.ConnectError(str(problem) or "no answer in time"), asked, self.place) from problem

    async def _attempt(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: Mapping[str, Any] | None,
        content: Content | None,
        timeout: float | None,
    ) -> httpx.Response:
        asked = Call(method, path)
        url, fields = address(self.place, path, params), encode(body)
        sent = _body(content) if fields is None else fields
        headers = {"Content-Type": BYTES if fields is None else JSON} if sent is not None else None
        limits = time_limits(self.timeout if timeout is None else timeout)
        try:
            return await self._http.get().request(method, url, content=sent, headers=headers, timeout=limits)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise translate(problem, asked, self.place) from problem


class _Patience:
    """How often one request was refused, and whether it may be sent again."""

    def __init__(self, asked: Call, place: Place, budget_s: float, *, create: bool) -> None:
        self.asked = asked
        self.last: PandastackError | None = None
        self._place = place
        self._budget_s, self._create = budget_s, create
        self._began, self._attempt = time.monotonic(), 0

    @property
    def refused(self) -> PandastackError:
        """Why, the last time."""
        assert self.last is not None
        return self.last

    def consider(self, response: httpx.Response, content: bytes) -> CreateRetryEvent | None:
        """What to wait for before the next try; None if there is to be none."""
        error = self.last = refusal(response.status_code, response.headers, content, self.asked, self._place)
        elapsed, hint = time.monotonic() - self._began, parse_retry_after(response.headers.get("Retry-After"))
        left_s, payload = self._budget_s - elapsed, payload_of(content)
        delay = wait_before_retry(response.status_code, hint, payload, self._attempt, left_s, create=self._create)
        if delay is None:
            return None
        self._attempt += 1
        logger.info("%s %s was refused (%s); try %d in %.1f s", *self.asked, error.message, self._attempt + 1, delay)
        return CreateRetryEvent(*self.asked, self._attempt, response.status_code, error.message, delay, elapsed, hint)

    def cancelled(self) -> CreateCancelled:
        if self.last is None:
            return CreateCancelled("the create was cancelled before it was sent")
        return CreateCancelled(f"the create was cancelled after it was refused {self._attempt} times, last: {self.last.message}")


def _body(content: Content | None) -> Any:
    if isinstance(content, str):
        return as_bytes(content)
    return content if content is None or isinstance(content, bytes) else pieces_of(content)


async def _some(pieces: Flow[bytes]) -> bytes:
    """The beginning of a body, which is all that an error needs."""
    found = b""
    async for piece in pieces:
        found += piece
        if len(found) >= MAX_REFUSAL_BYTES:
            break
    return found
