"""What running a cell comes to: the events as they happen, and the execution that they add up to. Pure.

    Started  (Stdout | Stderr | Output | Clear | Failure)*  Done

The order of events is the order in which things happened in the guest. `Fold` takes them one by one; what it makes of them
is what a notebook would show below the cell: an update replaces what it updates, a clear takes away what came before.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    """Bytes left out because of the budget. `file` in the sandbox has the whole, unless its disk was full."""

    omitted: int
    file: str | None


@dataclass(frozen=True)
class Truncated:
    """What did not fit the budgets; None where all of it came."""

    stdout: Cut | None = None
    stderr: Cut | None = None
    results: Cut | None = None


# -- events -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """The cell has left the queue. `id` finds this execution again, `count` is the cell's number in its context."""

    id: str
    count: int | None


@dataclass(frozen=True)
class Stdout:
    text: str


@dataclass(frozen=True)
class Stderr:
    text: str


@dataclass(frozen=True)
class Output:
    """Something was shown. `update`: it takes the place of what was shown under the same display id."""

    result: Result
    update: bool = False


@dataclass(frozen=True)
class Clear:
    """What was shown so far is to go; with `wait`, only once there is something to take its place."""

    wait: bool


@dataclass(frozen=True)
class Failure:
    error: ExecutionError


@dataclass(frozen=True)
class Done:
    """Always the last one."""

    id: str
    count: int | None
    duration_s: float
    changes: Changes | None = None
    truncated: Truncated = field(default_factory=Truncated)


Event = Started | Stdout | Stderr | Output | Clear | Failure | Done


@dataclass(frozen=True)
class Execution:
    """A cell that has ended, and everything that came of it."""

    id: str
    results: tuple[Result, ...]
    stdout: str
    stderr: str
    error: ExecutionError | None
    count: int | None
    duration_s: float
    changes: Changes | None
    truncated: Truncated

    @property
    def main(self) -> Result | None:
        """The value of the cell's last expression."""
        return next((result for result in self.results if result.main), None)

    @property
    def text(self) -> str | None:
        """The main result as text."""
        return self.main.text if self.main else None

    @property
    def html(self) -> str | None:
        return next((found for result in self._by_rank() if (found := result.html) is not None), None)

    @property
    def png(self) -> bytes | None:
        """The main result's picture, or else the first that was shown."""
        return next((found for result in self._by_rank() if (found := result.png) is not None), None)

    @property
    def chart(self) -> Any:
        return next((found for result in self._by_rank() if (found := result.chart) is not None), None)

    def _by_rank(self) -> list[Result]:
        return sorted(self.results, key=lambda result: not result.main)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("id", "stdout", "stderr", "count", "duration_s")}
        values = {"error": self.error, "changes": self.changes, "truncated": self.truncated}
        rendered = {name: asdict(value) if value is not None else None for name, value in values.items()}
        return {**plain, "results": [result.to_json() for result in self.results], **rendered}


class Fold:
    """Adds events up. Raises AgentProtocol for an order in which no agent sends them."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._text: dict[type[Stdout | Stderr], list[str]] = {Stdout: [], Stderr: []}
        self._results: list[Result] = []
        self._clear_next = False
        self._error: ExecutionError | None = None
        self._done: Done | None = None

    @property
    def over(self) -> bool:
        return self._done is not None

    def take(self, event: Event) -> None:
        if self._done is not None:
            raise AgentProtocol("the guest went on after it had said that the cell was done")
        if (self._started is None) != isinstance(event, Started):
            raise AgentProtocol("the guest did not begin with the start of the cell, or started it twice")
        if self._clear_next and isinstance(event, Stdout | Stderr | Output):
            self._clear()
        match event:
            case Started():
                self._started = event
            case Stdout(text) | Stderr(text):
                self._text[type(event)].append(text)
            case Output(result, update):
                self._show(result, update)
            case Clear(wait):
                self._clear_next = True
                if not wait:
                    self._clear()
            case Failure(error):
                self._error = error  # the last one knows best: an exception may be followed by the kernel's death
            case Done():
                self._finish(event)

    def _show(self, result: Result, update: bool) -> None:
        if not update:
            self._results.append(result)
        elif result.display_id is not None:
            for place, shown in enumerate(self._results):
                if shown.display_id == result.display_id:
                    self._results[place] = Result(result.data, shown.main, result.metadata, result.display_id)

    def _clear(self) -> None:
        self._clear_next = False
        self._results.clear()
        for pieces in self._text.values():
            pieces.clear()

    def _finish(self, done: Done) -> None:
        assert self._started is not None
        if done.id != self._started.id:
            raise AgentProtocol("the guest started one execution and ended another")
        self._done = done

    @property
    def execution(self) -> Execution:
        """The sum, once `over`."""
        assert self._done is not None, "the cell is still running"
        return Execution(
            id=self._done.id,
            results=tuple(self._results),
            stdout="".join(self._text[Stdout]),
            stderr="".join(self._text[Stderr]),
            error=self._error,
            count=self._done.count,
            duration_s=self._done.duration_s,
            changes=self._done.changes,
            truncated=self._done.truncated,
        )
