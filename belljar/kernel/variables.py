"""The user's variables: a list of them, and what a cell has done to them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from belljar.kernel.previews import Summary, summarize

MAX_LISTED = 1000
MAX_NAME = 200


def find_variables(namespace: dict[str, Any], hidden: dict[str, Any]) -> dict[str, Any]:
    """What the user has defined: not what the shell has put there, not what was imported, nothing private."""
    return {
        name: value
        for name, value in list(namespace.items())
        if type(name) is str
        and not name.startswith("_")
        and len(name) <= MAX_NAME
        and type(value) is not ModuleType
        and not (name in hidden and hidden[name] is value)
    }


def describe(name: str, value: Any, summary: Summary | None = None) -> dict[str, Any]:
    summary = summary or summarize(value)
    kind = type(value)
    known = kind.__module__ in ("builtins", "__main__")
    return {
        "name": name,
        "type": kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}",
        "shape": summary.shape,
        "size_bytes": summary.size_bytes,
        "preview": summary.preview,
    }


def list_variables(variables: dict[str, Any]) -> list[dict[str, Any]]:
    return [describe(name, value) for name, value in sorted(variables.items())[:MAX_LISTED]]


class VariablesBefore:
    """How the variables were before a cell. Values are not kept alive: only what tells whether they have changed."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._marks = {name: summarize(value).mark for name, value in variables.items()}

    def compare(self, variables: dict[str, Any]) -> dict[str, list[Any]]:
        added, changed = [], []
        for name, value in sorted(variables.items()):
            summary = summarize(value)
            if name not in self._marks:
                added.append(describe(name, value, summary))
            elif summary.mark != self._marks[name]:
                changed.append(describe(name, value, summary))
        removed = sorted(self._marks.keys() - variables.keys())
        return {"added": added[:MAX_LISTED], "changed": changed[:MAX_LISTED], "removed": removed[:MAX_LISTED]}
