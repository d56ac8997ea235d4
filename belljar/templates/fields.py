"""Reading a recipe's values: each by name and kind, with errors that name the key, and nothing left over at the end."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, NoReturn

from belljar.errors import InvalidInput

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)", re.ASCII)


class Fields:
    """The content of one TOML table; remembers which keys were asked for."""

    def __init__(self, where: str, content: dict[str, Any]) -> None:
        self.where = where
        self.content = content
        self._known: set[str] = set()

    def bad(self, key: str, problem: str) -> NoReturn:
        raise InvalidInput(f"{self.where}: {key}: {problem}", key=key)

    def _get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        value = self.content.get(key, default)
        if value is None:
            self.bad(key, "is missing")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str) or "\0" in value:
            self.bad(key, "must be text")
        return value

    def word(self, key: str, pattern: str) -> str:
        value = self.text(key)
        if not re.fullmatch(pattern, value, re.ASCII):
            self.bad(key, f"{value[:40]!r} is not valid")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self._get(key, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and "\0" not in item for item in value):
            self.bad(key, "must be a list of texts")
        return tuple(value)

    def words(self, key: str, pattern: str) -> tuple[str, ...]:
        values = self.texts(key)
        for value in values:
            if not re.fullmatch(pattern, value, re.ASCII):
                self.bad(key, f"{value[:40]!r} is not valid")
        return values

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.bad(key, f"must be a whole number from {low} to {high}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.bad(key, "must be true or false")
        return value

    def table(self, key: str) -> dict[str, str]:
        value = self._get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) and "\0" not in item for item in value.values()):
            self.bad(key, "must be a table of texts")
        return dict(value)

    def tables(self, key: str) -> list[Fields]:
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.bad(key, "must be a list of tables")
        return [Fields(f"{self.where}: {key}", item) for item in value]

    def section(self, key: str) -> Fields | None:
        """A table with keys of its own; None where there is none."""
        self._known.add(key)
        value = self.content.get(key)
        if value is not None and not isinstance(value, dict):
            self.bad(key, "must be a table")
        return None if value is None else Fields(f"{self.where}: {key}", value)

    def finish(self) -> None:
        """A key that nobody asked for is a misspelt one."""
        if unknown := sorted(self.content.keys() - self._known):
            self.bad(unknown[0], f"there is no such key; known are {', '.join(sorted(self._known))}")


def guest_path(fields: Fields, key: str, path: str) -> str:
    """`path` if it is absolute and says plainly where it leads."""
    if not path.startswith("/") or path != posixpath.normpath(path) or path.startswith("//") or path == "/":
        fields.bad(key, f"{path[:80]!r} is not a plain absolute path")
    return path


def lock_lines(fields: Fields, lock: Path, wheels: tuple[str, ...], inherited: tuple[str, ...]) -> tuple[str, ...]:
    """The pins of the lock file. With the inherited ones they must hold every wheel that the recipe names, each name once."""
    for pin in wheels:
        if not _PIN.fullmatch(pin):
            fields.bad("wheels", f"{pin[:60]!r} is not pinned as name==version")
    if not wheels:
        if lock.exists():
            fields.bad("wheels", f"there is a {lock.name}, but no wheel is named")
        return ()
    try:
        lines = [line.strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    except OSError as problem:
        fields.bad("wheels", f"{lock.name} is missing ({problem}); make it with scripts/lock-wheels")
    pins = tuple(line for line in lines if line and not line.startswith("#"))
    for pin in pins:
        if not _PIN.fullmatch(pin):
            fields.bad("wheels", f"{lock.name}: {pin[:60]!r} is not pinned as name==version")
    everything = [_plain(pin) for pin in (*inherited, *pins)]
    names = [pin.split("==")[0] for pin in everything]
    if twice := {name for name in names if names.count(name) > 1}:
        fields.bad("wheels", f"{sorted(twice)[0]} is pinned twice in {lock.name} and its parents'")
    if missing := {_plain(pin) for pin in wheels} - set(everything):
        fields.bad("wheels", f"{sorted(missing)[0]} is not in {lock.name}; make it again with scripts/lock-wheels")
    return pins


def _plain(pin: str) -> str:
    """PyPI takes '-', '_', '.' and case in names for the same."""
    name, version = pin.split("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"
