"""Requests as they come in: judged field by field before anything is done. What is wrong is InvalidInput and says which field."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from itertools import islice
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from belljar.errors import InvalidInput, TooLarge, TooSlow
from belljar.server.operation import MAX_JSON_BYTES, QUERY, Media, operation_of
from belljar.server.shapes import FLAG_WORDS, Shape, check, check_record

# A client that sends nothing of its body for so long is not going to. All of a JSON body must have come in as long.
SILENT_S = 120.0
TRUE, FALSE = ("1", "true"), ("", "0", "false")
MAX_PARAMETERS = 200
# Of a large body nearly all must be text: a few MiB of brackets and commas are hundreds of MiB of objects, and seconds of work.
MAX_PARTS = 100_000
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


class Fields:
    """The fields of one JSON object, which the route's declaration has judged already. A field that is null counts as absent."""

    def __init__(self, values: dict[str, Any], declared: Mapping[str, Any]) -> None:
        self._values = values
        self._declared = declared

    def __contains__(self, name: str) -> bool:
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        """As it was declared; None if absent."""
        if name not in self._declared:
            raise LookupError(f"the handler reads the field {name!r}, which its route does not declare")
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        found: str = self._given(name, default)
        return found

    def optional_text(self, name: str) -> str | None:
        found: str | None = self.value(name)
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found: bool = self._given(name, default)
        return found

    def number(self, name: str, default: float | None = None) -> float:
        found: float = self._given(name, default)
        return found

    def whole(self, name: str, default: int | None = None) -> int:
        found: int = self._given(name, default)
        return found

    def texts(self, name: str) -> list[str]:
        """Absent is empty."""
        found: list[str] = self._given(name, [])
        return found

    def labels(self, name: str) -> dict[str, str]:
        """Text to text; absent is empty."""
        found: dict[str, str] = self._given(name, {})
        return found

    def _given(self, name: str, default: Any) -> Any:
        value = self.value(name)
        if value is None and default is None:
            raise InvalidInput(f"{name} required")
        return default if value is None else value


async def read_fields(request: Request) -> Fields:
    """The JSON object in the body, as the route declares it; an empty body is an empty object, whatever type it claims to be."""
    operation = operation_of(request)
    if operation is None or operation.body is None or isinstance(operation.body, Media):
        raise LookupError(f"the handler of {request.url.path!r} reads a body of fields, which its route does not declare")
    values = _parse(await _read_all(request, operation.max_body))
    return Fields(check_record(values, operation.body), operation.body["properties"])


async def _read_all(request: Request, limit: int) -> bytearray:
    raw = bytearray()
    try:
        async with asyncio.timeout(SILENT_S):
            async for piece in body_of(request):
                raw += piece
                if len(raw) > limit:
                    raise TooLarge(f"the body has more than {limit} bytes; put large data into a file")
    except TimeoutError:
        raise TooSlow(f"the request's body has not come within {SILENT_S:.0f} s") from None
    return raw


def _parse(raw: bytearray) -> dict[str, Any]:
    if not raw.strip():
        return {}
    if len(raw) > MAX_JSON_BYTES:
        _check_bulk(raw)
    try:
        values = parse_json(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InvalidInput("the body is not valid JSON in UTF-8") from None
    if not isinstance(values, dict):
        raise InvalidInput(f"the body must be a JSON object, not {type(values).__name__}")
    return values


def parse_json(text: str) -> Any:
    """JSON as it is defined, no NaN and no field twice. Raises ValueError or RecursionError; for a field twice InvalidInput."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_each_once)


def _check_bulk(raw: bytearray) -> None:
    if raw.count(b"[") + raw.count(b"{") + raw.count(b",") < MAX_PARTS:
        return
    outside, strings = len(raw), 0
    for found in islice(STRING.finditer(raw), MAX_PARTS):
        outside -= found.end() - found.start()
        strings += 1
    if outside > MAX_PARTS or strings == MAX_PARTS:
        raise TooLarge(f"the body has too many parts for its {len(raw)} bytes; more than {MAX_JSON_BYTES} may only be text")


async def body_of(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives, none of it kept."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(SILENT_S):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise TooSlow(f"nothing of the request's body has come for {SILENT_S:.0f} s") from None
        except ClientDisconnect:
            raise InvalidInput("the client went away before all of its request had come") from None
        if piece:
            yield piece


def read_query(connection: HTTPConnection, shape: Shape) -> dict[str, str]:
    """The parameters of the query, judged as the route declares them. Others are left alone: clients and proxies add some."""
    try:
        # Names of files need not be UTF-8; such bytes come as half surrogates, as they do in answers.
        found = parse_qsl(
            connection.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidInput(f"the query cannot be read: it must be ASCII, with at most {MAX_PARAMETERS} parameters") from None
    values: dict[str, str] = {}
    for name, value in found:
        if name in values and name in shape["properties"]:
            raise InvalidInput(f"{name[:80]} must be given only once")
        values[name] = value
    for name, wanted in shape["properties"].items():
        if name in values:
            _check_parameter(values[name], wanted, name)
        elif name in shape.get("required", ()):
            raise InvalidInput(f"{name} required")
    return values


def _check_parameter(value: str, shape: Shape, name: str) -> None:
    kinds = [kind for kind in ([shape["type"]] if isinstance(shape["type"], str) else shape["type"]) if kind != "null"]
    if kinds == ["integer"] or kinds == ["number"]:
        parsed = _number(value)
        check(value if parsed is None else parsed, shape, name)
        return
    if set(FLAG_WORDS) <= set(shape.get("enum", ())):
        value = value.lower()
    elif not value and "null" in shape["type"]:
        return  # an optional parameter without a value is one that was not given
    check(value, shape, name)


def _number(value: str) -> float | int | None:
    if value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    try:
        return float(value) if len(value) <= 40 and value.isascii() and "_" not in value else None
    except ValueError:
        return None


def query_of(request: HTTPConnection) -> Mapping[str, str]:
    """All parameters of the query. Those that the route declares have been judged."""
    checked: dict[str, str] | None = request.scope.get(QUERY)
    return request.query_params if checked is None else checked


def query_text(request: HTTPConnection, name: str) -> str:
    value = query_of(request).get(name)
    if not value:
        raise InvalidInput(f"{name} required")
    return value


def query_flag(request: HTTPConnection, name: str) -> bool:
    value = query_of(request).get(name, "").lower()
    if value not in (*TRUE, *FALSE):
        raise InvalidInput(f"{name} must be 1 or 0")
    return value in TRUE


def query_whole(request: HTTPConnection, name: str, default: int) -> int:
    """A number that the route declares as whole, with its bounds."""
    found = _number(query_of(request).get(name, ""))
    return default if found is None else int(found)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object that names a field twice means one thing to one reader and another to the next."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise InvalidInput("an object names a field twice")
    return values
