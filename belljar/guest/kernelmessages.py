"""What a kernel says, judged before the agent acts on it: the user's code can write to a kernel's control socket too.

What is of the wrong type ends the kernel. What is only too long for one message of the wire is shortened.

    agent -> kernel   {"do": "run", "n", "code", "stdin", "changes"}      code null: it is the blob; "count": false if silent
                      {"do": "env", "set": {name: value}, "cwd"}          the first message, and after a thaw
                      {"do": "reseed"}                                    after a thaw; Python kernels get SIGUSR1 instead
                      {"do": "interrupt", "n"}                            with the SIGINT, to kernels that ask for it
                      {"do": "variables"}                                 Python
    kernel -> agent   {"ev": "ready", "language", "version"}              "interrupt": "message" asks for that
                      {"ev": "output", "n", "main", "parts", "metadata", "display_id", "update"}   the blob is the parts' bytes
                      {"ev": "clear", "n", "wait"}
                      {"ev": "error", "n", "name", "value", "traceback"}  also "kind", "state_lost", "killed", "errno"
                      {"ev": "done", "n", "count", "duration_s", "changes"}
                      {"ev": "variables", "variables"}
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

MAX_PARTS: Final = 64
MAX_ERROR_CHARS: Final = 8 * 1024
_MAX_MIME: Final = 255
_MAX_DISPLAY_ID: Final = 256
_MAX_METADATA: Final = 32 * 1024
_MAX_TRACEBACK: Final = 48 * 1024
_MAX_DETAILS: Final = 96 * 1024  # a message of the wire has 128 KiB
_PART_KINDS: Final = ("text", "binary", "json")
_ERROR_KINDS: Final = ("exception", "exit", "died", "interrupted")


class Violation(Exception):
    """No kernel of ours sends this."""


class Failed(NamedTuple):
    """An error event. A kernel that had to start its interpreter afresh says that the state is lost."""

    kind: str
    name: str
    value: str
    traceback: list[str]
    state_lost: bool
    errno: int | None = None
    killed: bool = False  # by somebody; it may have been for its memory


class Finished(NamedTuple):
    number: int | None
    duration_s: float
    changes: dict[str, Any] | None


def _get(message: dict[str, Any], name: str, kind: type) -> Any:
    value = message.get(name)
    if type(value) is not kind:
        raise Violation(f"`{name}` of a kernel's message is {type(value).__name__}, not {kind.__name__}")
    return value


def parse_output(message: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """What is sent on ahead of the blob."""
    parts = _get(message, "parts", list)
    total = 0
    seen = set()
    for part in parts:
        if type(part) is not dict:
            raise Violation("a part of an output is no object")
        mime, size = _get(part, "mime", str), _get(part, "size", int)
        if not 0 <= size <= len(blob) or not 0 < len(mime) <= _MAX_MIME or part.get("kind") not in _PART_KINDS or mime in seen:
            raise Violation("a part of an output with an impossible size, type or kind")
        seen.add(mime)
        total += size
    if total != len(blob) or len(parts) > MAX_PARTS:
        raise Violation("the parts of an output are not what its blob holds")
    display_id = message.get("display_id")
    if display_id is not None and (type(display_id) is not str or len(display_id) > _MAX_DISPLAY_ID):
        raise Violation("`display_id` of an output")
    metadata = message.get("metadata") or {}
    if metadata and (type(metadata) is not dict or len(_render(metadata)) > _MAX_METADATA):
        metadata = {}
    return {
        "main": message.get("main") is True,
        "parts": [{"mime": part["mime"], "size": part["size"], "kind": part["kind"]} for part in parts],
        "metadata": metadata,
        "display_id": display_id,
        "update": message.get("update") is True,
    }


def parse_error(message: dict[str, Any]) -> Failed:
    name, value, lines = _get(message, "name", str), _get(message, "value", str), _get(message, "traceback", list)
    if not all(type(line) is str for line in lines):
        raise Violation("`traceback` holds something else than lines")
    kind = message.get("kind", "exception")
    if kind not in _ERROR_KINDS:
        raise Violation("`kind` of an error")
    errno = message.get("errno")
    return Failed(
        kind,
        shorten(name, 256),
        shorten(value, MAX_ERROR_CHARS),
        _fit_lines(lines),
        message.get("state_lost") is True,
        errno if type(errno) is int else None,
        message.get("killed") is True,
    )


def parse_done(message: dict[str, Any]) -> Finished:
    count, duration = message.get("count"), message.get("duration_s")
    if count is not None and (type(count) is not int or not 0 <= count < 1 << 53):
        raise Violation("`count` of a cell")
    if not isinstance(duration, int | float) or not 0 <= duration <= 1e9:  # false for NaN too
        raise Violation("`duration_s` of a cell")
    changes = message.get("changes")
    return Finished(count, float(duration), None if changes is None else _parse_changes(changes))


def parse_variables(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Violation("variables that are no list")
    return [_parse_variable(item) for item in value]


def fit(lists: list[list[Any]], limit: int = _MAX_DETAILS) -> int:
    """Shorten lists, from their ends, so that together they fit a message. Returns how many items were taken out."""
    dropped = 0
    left = limit
    for items in lists:
        for index, item in enumerate(items):
            left -= len(_render(item)) + 1
            if left < 0:
                dropped += len(items) - index
                del items[index:]
                break
    return dropped


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def _render(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _fit_lines(lines: list[str]) -> list[str]:
    """The beginning and the end of a traceback matter most."""
    lines = [shorten(line, 2048) for line in lines]
    if sum(map(len, lines)) * 6 + 3 * len(lines) <= _MAX_TRACEBACK or len(_render(lines)) <= _MAX_TRACEBACK:
        return lines
    first, last = lines[: len(lines) // 2], lines[len(lines) // 2 :][::-1]
    dropped = fit([first], _MAX_TRACEBACK // 2) + fit([last], _MAX_TRACEBACK // 2)
    return [*first, f"... ({dropped} lines left out)", *reversed(last)]


def _parse_variable(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Violation("a variable that is no object")
    shape, size = value.get("shape"), value.get("size_bytes")
    if (shape is not None and type(shape) is not str) or (size is not None and (type(size) is not int or not 0 <= size < 1 << 62)):
        raise Violation("shape or size of a variable")
    return {
        "name": shorten(_get(value, "name", str), 200),
        "type": shorten(_get(value, "type", str), 200),
        "shape": None if shape is None else shorten(shape, 100),
        "size_bytes": size,
        "preview": shorten(_get(value, "preview", str), 400),
    }


def _parse_changes(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Violation("changes that are no object")
    variables, files = _get(value, "variables", dict), _get(value, "files", dict)
    added, changed = parse_variables(variables.get("added")), parse_variables(variables.get("changed"))
    files_added, files_changed = _parse_files(files.get("added")), _parse_files(files.get("changed"))
    removed, files_removed = _parse_names(variables.get("removed")), _parse_names(files.get("removed"))
    dropped = fit([added, changed, removed], _MAX_DETAILS // 2)
    files_dropped = fit([files_added, files_changed, files_removed], _MAX_DETAILS // 2)
    return {
        "variables": {"added": added, "changed": changed, "removed": removed, "complete": not dropped},
        "files": {
            "added": files_added,
            "changed": files_changed,
            "removed": files_removed,
            "complete": files.get("complete") is True and not files_dropped,
        },
    }


def _parse_files(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Violation("files that are no list of objects")
    return [{"path": shorten(_get(item, "path", str), 4096), "size": _get(item, "size", int)} for item in value]


def _parse_names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(type(item) is str for item in value):
        raise Violation("names that are no list of texts")
    return [shorten(item, 4096) for item in value]
