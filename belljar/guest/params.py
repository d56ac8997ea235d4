"""Parameters of a request, taken out one by one and checked: whatever a host sends, the answer is a typed one."""

from __future__ import annotations

from typing import Any

from belljar.guest.failure import invalid


class Params:
    """The JSON object of an OPEN frame. A parameter that is absent or null takes its default."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def text(self, name: str) -> str:
        value = self.find_text(name)
        if value is None:
            raise invalid(f"`{name}` is missing")
        return value

    def find_text(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or "\0" in value:
            raise invalid(f"`{name}` must be text without NUL")
        return value

    def path(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise invalid(f"`{name}` is an empty path")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.find_integer(name, low, high)
        return default if value is None else value

    def find_integer(self, name: str, low: int, high: int) -> int | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise invalid(f"`{name}` must be a whole number from {low} to {high}")
        return value

    def find_seconds(self, name: str) -> float | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 10**9:
            raise invalid(f"`{name}` must be a positive number of seconds")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(f"`{name}` must be true or false")
        return value

    def find_texts(self, name: str) -> list[str] | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
            raise invalid(f"`{name}` must be a list of texts without NUL")
        return value

    def environment(self, name: str) -> dict[str, str] | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(f"`{name}` must map names to values")
        for key, entry in value.items():
            if not key or "=" in key or "\0" in key or not isinstance(entry, str) or "\0" in entry:
                raise invalid(f"`{name}` holds {key!r}, which no environment can")
        return value

    def find_group(self, name: str) -> Params | None:
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(f"`{name}` must be an object")
        return Params(value)
