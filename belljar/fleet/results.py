"""What a cell's events carry, as plain values: something shown, an error, what changed, what was left out."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from belljar.errors import AgentProtocol

CHART = "application/vnd.belljar.chart+json"

ErrorKind = Literal["exception", "timeout", "interrupted", "out_of_memory", "died", "disk_full", "exit"]
ERROR_KINDS: tuple[ErrorKind, ...] = ("exception", "timeout", "interrupted", "out_of_memory", "died", "disk_full", "exit")


@dataclass(frozen=True)
class Result:
    """One thing that a cell showed, in every form that it has: text as text, JSON as its text, anything else as bytes.

    `main` marks the value of the cell's last expression.
    """

    data: Mapping[str, str | bytes]
    main: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None

    def _text(self, mime: str) -> str | None:
        found = self.data.get(mime)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def _bytes(self, mime: str) -> bytes | None:
        found = self.data.get(mime)
        return found.encode("utf-8", "replace") if isinstance(found, str) else found

    def _parsed(self, mime: str) -> Any:
        text = self._text(mime)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise AgentProtocol(f"the guest sent something as {mime} that is not JSON: {problem}") from None

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        return self._text("text/markdown")

    @property
    def latex(self) -> str | None:
        return self._text("text/latex")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def javascript(self) -> str | None:
        return self._text("application/javascript")

    @property
    def png(self) -> bytes | None:
        return self._bytes("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self._bytes("image/jpeg")

    @property
    def pdf(self) -> bytes | None:
        return self._bytes("application/pdf")

    @property
    def json(self) -> Any:
        """The parsed application/json; None also if there is none."""
        return self._parsed("application/json")

    @property
    def chart(self) -> Any:
        """What a matplotlib figure shows: type, title, labels, scales and data of each of its axes."""
        return self._parsed(CHART)

    def to_json(self) -> dict[str, Any]:
        """For JSON: bytes become base64, and `binary` names their types."""
        encoded = {mime: base64.b64encode(v).decode() if isinstance(v, bytes) else v for mime, v in self.data.items()}
        binary = [mime for mime, value in self.data.items() if isinstance(value, bytes)]
        return {"main": self.main, "data": encoded, "binary": binary, "metadata": dict(self.metadata)}


@dataclass(frozen=True)
class ExecutionError:
    """Why a cell did not run to its end. What the user's code does wrong is data; nothing is raised for it.

    `state_lost`: the context was started afresh under the same id, and its variables are gone.
    """

    kind: ErrorKind
    name: str
    value: str
    traceback: tuple[str, ...] = ()
    state_lost: bool = False
    peak_memory_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True)
class Variable:
    """A name of a context. `size_bytes` is of the object itself, where that is known cheaply."""

    name: str
    type: str
    shape: str | None
    size_bytes: int | None
    preview: str


@dataclass(frozen=True)
class ChangedFile:
    path: str
    size: int


@dataclass(frozen=True)
class Changes:
    """What a cell left behind. `files_complete` is False where there were too many files to look at all of them."""

    added: tuple[Variable, ...] = ()
    changed: tuple[Variable, ...] = ()
    removed: tuple[str, ...] = ()
    files_added: tuple[ChangedFile, ...] = ()
    files_changed: tuple[ChangedFile, ...] = ()
    files_removed: tuple[str, ...] = ()
    files_complete: bool = True


@dataclass(frozen=True)
class Cut:
    """Bytes left out because of the budget. `files` in the sandbox have the whole, if `complete`: its disk may have been full.

    Of a stream, the first `head` bytes and the last ones came back.
    """

    omitted: int
    files: tuple[str, ...]
    complete: bool = True
    head: int | None = None


@dataclass(frozen=True)
class Truncated:
    """What did not fit the budgets; None where all of it came."""

    stdout: Cut | None = None
    stderr: Cut | None = None
    results: Cut | None = None
