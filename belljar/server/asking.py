"""Requests as they come in: judged field by field before anything is done. What is wrong is InvalidInput and says which field."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from belljar.errors import DeadlineExceeded, InvalidInput, TooLarge

# A cell may have 4 MiB, and JSON may need two bytes for one and more for some.
MAX_JSON_BYTES = 16 * 1024 * 1024
# A client that sends nothing of its body for so long is not going to.
SILENT_S = 120.0
TRUE, FALSE = ("1", "true"), ("", "0", "false")


class Fields:
    """The fields of one JSON object. A field that is null counts as absent."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if value is None or value == "":
            raise InvalidInput(f"{name} required")
        if not isinstance(value, str):
            self._wrong(name, "text", value)
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if name in self else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._wrong(name, "true or false", value)
        return value

    def number(self, name: str, default: float) -> float:
        """Seconds and the like; not negative."""
        value = self._values.get(name)
        if value is None:
            return default
        # The comparison also keeps an integer of a thousand digits from overflowing in float().
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e12 or math.isnan(value):
            self._wrong(name, "a number that is not negative", value)
        return float(value)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._wrong(name, f"a whole number from {low} to {high}", value)
        return value

    def texts(self, name: str) -> list[str]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(name, "a list of texts", value)
        return value

    def any(self, name: str) -> Any:
        """As it came, for whoever judges it."""
        return self._values.get(name)

    def only(self, *names: str) -> dict[str, Any]:
        """Those of the fields that are given, as they came; any other is a mistake."""
        if unknown := sorted(self._values.keys() - set(names)):
            raise InvalidInput(f"there is no field {unknown[0][:80]!r} here; there are {', '.join(names)}")
        return {name: value for name, value in self._values.items() if value is not None}

    def labels(self, name: str) -> dict[str, str]:
        """Text to text; absent is empty."""
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            self._wrong(name, "an object whose values are text", value)
        return value

    def _wrong(self, name: str, wanted: str, value: object) -> NoReturn:
        raise InvalidInput(f"{name} must be {wanted}, not {type(value).__name__ if value is not None else 'absent'}")


async def read_fields(request: Request) -> Fields:
    """The JSON object in the body; an empty body is an empty object, whatever type it claims to be."""
    raw = bytearray()
    async for piece in body_of(request):
        raw += piece
        if len(raw) > MAX_JSON_BYTES:
            raise TooLarge(f"the body has more than {MAX_JSON_BYTES} bytes; put large data into a file")
    if not raw.strip():
        return Fields({})
    try:
        values = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidInput("the body is not valid JSON in UTF-8") from None
    if not isinstance(values, dict):
        raise InvalidInput(f"the body must be a JSON object, not {type(values).__name__}")
    return Fields(values)


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
            raise DeadlineExceeded(f"nothing of the request's body has come for {SILENT_S:.0f} s") from None
        except ClientDisconnect:
            raise InvalidInput("the client went away before all of its request had come") from None
        if piece:
            yield piece


def query_text(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise InvalidInput(f"{name} required")
    return value


def query_flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "").lower()
    if value not in (*TRUE, *FALSE):
        raise InvalidInput(f"{name} must be 1 or 0")
    return value in TRUE


def query_whole(request: Request, name: str, default: int, high: int) -> int:
    value = request.query_params.get(name)
    if value is None:
        return default
    if not value.isascii() or not value.isdecimal() or len(value) > 18 or int(value) > high:
        raise InvalidInput(f"{name} must be a whole number from 0 to {high}")
    return int(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
