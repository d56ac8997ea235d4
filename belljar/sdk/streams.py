"""Server-sent events, bytes in and events out. Pure: whoever reads the connection feeds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from belljar.sdk.errors import Lost

# More than any event of a Belljar server has; beyond it somebody else is talking.
MAX_EVENT_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class StreamEvent:
    """One event. `data` is its JSON object; what is no object comes as {"text": …}."""

    name: str
    data: dict[str, Any]


class EventReader:
    """Splits a stream into events. Comments are skipped; CR LF is taken as LF."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[StreamEvent]:
        found: list[StreamEvent] = []
        *whole, rest = piece.split(b"\n")
        for end in whole:
            self._line += end
            event = self._take_line(bytes(self._line).removesuffix(b"\r").decode("utf-8", "replace"))
            self._line.clear()
            if event is not None:
                found.append(event)
        self._line += rest
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise Lost(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")
        return found

    def _take_line(self, line: str) -> StreamEvent | None:
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                self._name = value
            elif field == "data":
                self._data.append(value)
                self._size += len(value)
            return None
        name, data = self._name or "message", "\n".join(self._data)
        empty = not self._data
        self._name, self._data, self._size = "", [], 0
        return None if empty else StreamEvent(name, _parse(data))


def _parse(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {"text": data}
    return value if isinstance(value, dict) else {"text": data}
