"""What a cell comes to: its results, its error, and the execution that has them all. Pure.

The words are those of the runtime. Values are as they travel and as other clients of this kind have them: text as text, and
pictures as base64 text; `bytes()`, `image` and `save()` give what is in it.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.sdk.errors import Lost

CHART = "application/vnd.belljar.chart+json"
MAX_SHOWN_CHARS = 80
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")


@dataclass(frozen=True)
class Result:
    """One thing that a cell showed, in every form that it has. `main` marks the value of the last expression."""

    data: dict[str, str]
    main: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    binary: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Result:
        return cls(
            data={str(mime): str(value) for mime, value in _mapping(fields.get("data")).items()},
            main=bool(fields.get("main")),
            metadata=_mapping(fields.get("metadata")),
            display_id=fields.get("display_id"),
            binary=tuple(str(mime) for mime in fields.get("binary") or ()),
        )

    @property
    def text(self) -> str | None:
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        return self.data.get("text/markdown")

    @property
    def latex(self) -> str | None:
        return self.data.get("text/latex")

    @property
    def javascript(self) -> str | None:
        return self.data.get("application/javascript")

    @property
    def svg(self) -> str | None:
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> str | None:
        """In base64; `bytes("image/png")` is the picture itself."""
        return self.data.get("image/png")

    @property
    def jpeg(self) -> str | None:
        """In base64."""
        return self.data.get("image/jpeg")

    @property
    def pdf(self) -> str | None:
        """In base64."""
        return self.data.get("application/pdf")

    @property
    def json(self) -> Any:
        """The parsed application/json, or its text if it is none."""
        return _parsed(self.data.get("application/json"))

    @property
    def chart(self) -> str | None:
        """The picture: PNG or JPEG in base64, or SVG."""
        return self.png or self.jpeg or self.svg

    @property
    def chart_data(self) -> Any:
        """What a matplotlib figure shows: type, title, labels and data of each of its axes."""
        return _parsed(self.data.get(CHART))

    @property
    def mime(self) -> str:
        """The richest form: a picture, then HTML, then whatever there is."""
        wanted = (*PICTURES, "text/html", *self.data)
        return next((mime for mime in wanted if mime in self.data), "text/plain")

    @property
    def image(self) -> builtins.bytes | None:
        """The picture itself."""
        return next((self.bytes(mime) for mime in PICTURES if mime in self.data), None)

    def bytes(self, mime: str) -> builtins.bytes:
        """One form as bytes: decoded if it came as base64, else its text in UTF-8."""
        value = self.data[mime]
        if mime not in self.binary:
            return value.encode("utf-8", "replace")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as problem:
            raise Lost(f"the server sent {mime} that is not base64: {problem}") from None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a notebook shows of it."""
        return {mime: _parsed(value) if mime.endswith("json") else value for mime, value in self.data.items()}, {**self.metadata}

    def __repr__(self) -> str:
        forms = ", ".join(f"{mime}: {_shortened(value)}" for mime, value in self.data.items())
        return f"Result({{{forms}}}{', main=True' if self.main else ''})"

    def save(self, path: str | Path, mime: str | None = None) -> Path:
        """Write one form (by default the richest) to a file of this machine."""
        target = Path(path)
        target.write_bytes(self.bytes(mime or self.mime))
        return target


class ExecutionError(str):
    """Why a cell did not run to its end. As text it is the traceback; the parts have names.

    `kind` is one of exception, timeout, interrupted, out_of_memory, died, disk_full, exit. With `state_lost` the context
    was started afresh, and its variables are gone.
    """

    kind: str
    name: str
    value: str
    traceback: tuple[str, ...]
    state_lost: bool
    peak_memory_bytes: int | None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ExecutionError:
        name, value = str(fields.get("name") or ""), str(fields.get("value") or "")
        traceback = tuple(str(line) for line in fields.get("traceback") or ())
        summary = f"{name}: {value}" if value else name
        error = cls("\n".join(traceback) or summary or "the cell failed")
        error.kind, error.name, error.value, error.traceback = str(fields.get("kind") or "exception"), name, value, traceback
        error.state_lost, error.peak_memory_bytes = bool(fields.get("state_lost")), fields.get("peak_memory_bytes")
        return error


@dataclass(frozen=True)
class Execution:
    """A cell that has ended, and everything that came of it. `changes` and `truncated` are as the API gives them."""

    results: list[Result] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    error: ExecutionError | None = None
    id: str = ""
    count: int | None = None
    duration_s: float = 0.0
    changes: Mapping[str, Any] | None = None
    truncated: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Execution:
        error = fields.get("error")
        return cls(
            results=[Result.from_dict(item) for item in fields.get("results") or () if isinstance(item, dict)],
            stdout=str(fields.get("stdout") or ""),
            stderr=str(fields.get("stderr") or ""),
            error=ExecutionError.from_dict(error) if isinstance(error, dict) else None,
            **parse_ending(fields),
        )

    @property
    def exit_code(self) -> int:
        """0, or 1 if the cell failed."""
        return 0 if self.error is None else 1

    @property
    def duration_ms(self) -> int:
        return int(self.duration_s * 1000)

    @property
    def logs(self) -> dict[str, str]:
        return {"stdout": self.stdout, "stderr": self.stderr}

    @property
    def main(self) -> Result | None:
        """The value of the cell's last expression."""
        return next((result for result in self.results if result.main), None)

    @property
    def text(self) -> str | None:
        """The main result as text, or else the first that has some."""
        found: str | None = self._first("text")
        return found

    @property
    def html(self) -> str | None:
        found: str | None = self._first("html")
        return found

    @property
    def png(self) -> str | None:
        """The main result's picture, or else the first one; in base64. `image` has its bytes."""
        found: str | None = self._first("png")
        return found

    @property
    def image(self) -> bytes | None:
        found: bytes | None = self._first("image")
        return found

    @property
    def chart_data(self) -> Any:
        return self._first("chart_data")

    def _first(self, form: str) -> Any:
        ranked = sorted(self.results, key=lambda result: not result.main)
        return next((found for result in ranked if (found := getattr(result, form)) is not None), None)


def parse_ending(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of an execution only at its end."""
    return {
        "id": str(fields.get("id") or ""),
        "count": fields.get("count"),
        "duration_s": float(fields.get("duration_seconds", fields.get("duration_s")) or 0.0),
        "changes": fields.get("changes"),
        "truncated": fields.get("truncated"),
        "notes": tuple(str(note) for note in fields.get("notes") or ()),
    }


def _shortened(value: str) -> str:
    return repr(value) if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]!r}… ({len(value)} characters)"


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text
