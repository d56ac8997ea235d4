"""What guests send back, judged before anything uses it: a field that is missing, mistyped or out of range is AgentProtocol.

The agent is ours, but whoever has root in a guest can replace it, so its answers deserve no more trust than a stranger's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.errors import AgentProtocol

MAX_SIZE = 2**62
MAX_ID_CHARS = 128


class Answer:
    """One JSON object of the guest, read field by field. `what` names it in the error."""

    def __init__(self, body: object, what: str) -> None:
        if not isinstance(body, Mapping):
            raise AgentProtocol(f"the guest sent {type(body).__name__} as {what}, not an object")
        self._body = body
        self._what = what

    def __contains__(self, name: str) -> bool:
        return self._body.get(name) is not None

    def whole(self, name: str, low: int = 0, high: int = MAX_SIZE) -> int:
        value = self._body.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def optional_whole(self, name: str, low: int = 0, high: int = MAX_SIZE) -> int | None:
        return self.whole(name, low, high) if name in self else None

    def number(self, name: str) -> float:
        value = self._body.get(name)
        # The comparison is false for NaN, and keeps an integer of a thousand digits from overflowing in float().
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e18:
            raise self._wrong(name, "a number that is not negative")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, *, max_chars: int = 65536) -> str:
        value = self._body.get(name)
        if not isinstance(value, str) or len(value) > max_chars:
            raise self._wrong(name, f"text of at most {max_chars} characters")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if name in self else None

    def one_of(self, name: str, *allowed: str) -> str:
        value = self.text(name)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._body.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return value

    def object(self, name: str) -> Answer:
        return Answer(self._body.get(name), f"{self._what}.{name}")

    def mapping(self, name: str) -> dict[str, Any]:
        """An object whose content is the user's own affair."""
        value = self._body.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def objects(self, name: str) -> list[Answer]:
        value = self._body.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return [Answer(item, f"{self._what}.{name}") for item in value]

    def _wrong(self, name: str, wanted: str) -> AgentProtocol:
        sent: Any = self._body.get(name)
        return AgentProtocol(f"the guest's {self._what} has no usable {name!r} (wanted {wanted}, got {type(sent).__name__})")


def parse_stats(body: object) -> dict[str, Any]:
    """The guest's own view of what it uses."""
    stats = Answer(body, "statistics")
    cpu, memory, disk = stats.object("cpu"), stats.object("memory"), stats.object("disk")
    return {
        "cpu": {"count": cpu.whole("count", 1), **{name: cpu.number(name) for name in ("user_s", "system_s", "idle_s", "load1")}},
        "memory": {name: memory.whole(name) for name in ("total", "available", "used")},
        "disk": {name: disk.whole(name) for name in ("total", "used", "free")},
        "processes": stats.whole("processes"),
        "uptime_s": stats.number("uptime_s"),
    }
