"""Requests and answers, as far as they need no connection: addresses, time limits, what went wrong. Pure."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode
from urllib.request import getproxies

import httpx

from belljar.sdk.environment import Place
from belljar.sdk.errors import InvalidArgument, Lost, PandastackError, Unreached, error_of
from belljar.sdk.retrying import parse_retry_after

Client = TypeVar("Client")
GuestPath = str | PurePath

DEFAULT_TIMEOUT_S = 30.0
# Servers send a sign of life on streams at least every 10 s.
STREAM_SILENCE_S = 60.0
# Beyond a command's own limit: time for its answer to travel, on a busy server.
ANSWER_GRACE_S = 60.0
# What the server stops at when no limit was asked for.
UNLIMITED_EXEC_S = 900.0
# Making, copying and saving machines takes its time where there is no KVM.
MACHINE_S = 180.0
# Half a lifetime: more cannot be meant, and is more than the system's calls can take.
MAX_SECONDS = 1e9
# The transport notices a host that vanished during a long silence.
KEEPALIVE: list[tuple[int, int, int]] = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class Call(NamedTuple):
    """Which request: what errors tell about it."""

    method: str
    path: str


def route(*parts: str) -> str:
    """A path; what a part contains never becomes a part of its own."""
    if not all(isinstance(part, str) and part.strip(".") for part in parts):
        hint = "was the sandbox created, with `await` or `async with`?"
        raise InvalidArgument(f"an id or name is empty or no text: {parts!r}; {hint}")
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def texts(name: str, given: Sequence[str] | None) -> list[str] | None:
    """A list of texts. One text alone is refused: its letters would be taken for a list of them."""
    if isinstance(given, str):
        raise InvalidArgument(f"{name} must be a list of texts, not the text {given[:80]!r}")
    return None if given is None else list(given)


def check_seconds(name: str, given: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MAX_SECONDS:
        raise InvalidArgument(f"{name} must be a number of seconds, more than 0 and at most {MAX_SECONDS:.0f}, not {given!r}")
    return float(given)


def check_port(port: int, low: int = 1) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not low <= port <= 65535:
        raise InvalidArgument(f"a port is a number from {low} to 65535, not {port!r}")
    return port


def http_options(place: Place, timeout: float) -> dict[str, Any]:
    headers = {"Accept": "application/json", "User-Agent": f"belljar-py/{own_version()}"}
    if place.key:
        headers["Authorization"] = f"Bearer {place.key}"
    # No limit: calls that run for minutes, and streams that are followed, must not keep others from being sent.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=128, keepalive_expiry=30.0)
    # Without TLS there is no need to read every certificate authority of this machine, which takes longer than most calls.
    verify = place.url.startswith("https:")
    client = {"headers": headers, "timeout": time_limits(timeout), "limits": limits, "trust_env": not place.local, "verify": verify}
    # httpx heeds the environment's proxies only where it makes the transport itself.
    proxied = not place.local and bool(getproxies())
    return {"client": client, "transport": None if proxied else {"limits": limits, "verify": verify, "socket_options": KEEPALIVE}}


def make_client(kind: Callable[..., Client], transport: Callable[..., object], options: Mapping[str, Any]) -> Client:
    """The HTTP client that `http_options` describes, of either kind."""
    wanted = options["transport"]
    try:
        return kind(transport=transport(**wanted) if wanted else None, **options["client"])
    except (ImportError, ValueError, httpx.InvalidURL) as problem:
        raise unusable_proxy(problem) from problem


def unusable_proxy(problem: Exception) -> InvalidArgument:
    """Its address may be wrong, or a package is missing, as for SOCKS. All else that a client is made from has been checked."""
    return InvalidArgument(f"a proxy that the environment names cannot be used: {problem}")


def time_limits(seconds: float) -> httpx.Timeout:
    """`seconds` without a byte is too long; a connection is there sooner, or not at all."""
    return httpx.Timeout(seconds, connect=min(seconds, 10.0))


def exec_limits(timeout_s: float | None) -> float:
    return (check_seconds("timeout_seconds", timeout_s) if timeout_s is not None else UNLIMITED_EXEC_S) + ANSWER_GRACE_S


def translate(problem: Exception, call: Call, place: Place) -> PandastackError:
    """httpx's errors as ours, by table: was it sent or not?"""
    error: PandastackError
    if isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        hint = "start one with `belljar serve --dev`, or set BELLJAR_API_URL" if place.local else "check BELLJAR_API_URL"
        error = Unreached(f"no Belljar server can be reached at {place.url} ({_reason(problem)}); {hint}")
    elif isinstance(problem, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        error = InvalidArgument(f"the request cannot be sent: {_reason(problem)}")
    elif isinstance(problem, httpx.TimeoutException):
        error = Lost(f"{place.url} has not answered {call.method} {call.path} in time; whether it was done is not known")
    else:
        error = Lost(f"the connection to {place.url} broke during {call.method} {call.path}: {_reason(problem)}")
    error.details = {"method": call.method, "path": call.path, "url": place.url}
    return error


def _reason(problem: Exception) -> str:
    return str(problem) or type(problem).__name__


def guest_path(path: GuestPath) -> str:
    """With slashes, also where this machine's own paths have others."""
    return path.as_posix() if isinstance(path, PurePath) else path


def address(place: Place, path: str, params: Mapping[str, Any] | None) -> str:
    """Where a request goes. Names of files need not be UTF-8: such bytes are half surrogates here, as in what the server sends."""
    given = {name: guest_path(value) for name, value in (params or {}).items() if value is not None}
    try:
        query = urlencode(given, errors="surrogateescape")
    except UnicodeEncodeError as problem:
        raise InvalidArgument(f"the request cannot be sent: {problem}") from None
    return place.api + path + (f"?{query}" if query else "")


def encode(body: Mapping[str, Any] | None) -> bytes | None:
    """The JSON of a request."""
    if body is None:
        return None
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)
        try:
            return text.encode()
        except UnicodeEncodeError:  # it has half surrogates, which JSON can only escape
            return json.dumps(body, default=_default).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidArgument(f"the request cannot be sent: {problem}") from None


def _default(value: object) -> str:
    if isinstance(value, PurePath):
        return guest_path(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def decode(status: int, body: bytes, call: Call, place: Place) -> Any:
    """The JSON of an answer that went well."""
    if status == 204 or not body:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Lost(f"the answer to {call.method} {call.path} is no JSON; is there a Belljar server at {place.url}?") from None


def check_object(found: Any, call: Call, place: Place) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Lost(f"the answer to {call.method} {call.path} is no object; is there a Belljar server at {place.url}?")
    return found


def refusal(status: int, headers: httpx.Headers, body: bytes, call: Call, place: Place) -> PandastackError:
    """The error that an answer other than 2xx stands for."""
    error = error_of(
        status,
        payload_of(body),
        method=call.method,
        path=call.path,
        retry_after=parse_retry_after(headers.get("Retry-After")),
    )
    if request_id := headers.get("X-Request-Id"):
        error.details["request_id"] = request_id
    if status == 401 and place.key is None:
        error.message += "; no API key was given: set BELLJAR_API_KEY, or pass api_key="
    if 300 <= status < 400 and (location := headers.get("Location")):
        error.details["location"] = location
        error.message += f"; it points to {location[:400]}: is {place.url} the address of the server itself?"
    error.args = (error.message,)
    return error


def payload_of(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body[:4000].decode("utf-8", "replace")


def websocket_url(place: Place, path: str, params: Mapping[str, Any]) -> str:
    return address(place, path, params).replace("http", "ws", 1)


def own_version() -> str:
    try:
        return version("belljar")
    except PackageNotFoundError:
        return "0"
