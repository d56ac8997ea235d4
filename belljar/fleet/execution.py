"""What running a cell comes to: the events as they happen, and the execution that they add up to. Pure.

    Started  (Stdout | Stderr | Output | Clear | Failure)*  Done

The order of events is the order in which things happened in the guest. `Fold` takes them one by one; what it makes of them
is what a notebook would show below the cell: an update replaces what it updates, a clear takes away what came before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from io import StringIO
from typing import Any

from belljar.errors import AgentProtocol
from belljar.fleet.results import Changes, ExecutionError, Result, Truncated


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
    notes: tuple[str, ...] = ()


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
    notes: tuple[str, ...] = ()  # what its user should know, such as connections that were refused while it ran

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
        plain["notes"] = list(self.notes)
        return {**plain, "results": [result.to_json() for result in self.results], **rendered}


class Fold:
    """Adds events up. Raises AgentProtocol for an order in which no agent sends them."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._text: dict[type[Stdout | Stderr], StringIO] = {Stdout: StringIO(), Stderr: StringIO()}
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
                self._text[type(event)].write(text)
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
        for text in self._text.values():
            text.seek(0)
            text.truncate()

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
            stdout=self._text[Stdout].getvalue(),
            stderr=self._text[Stderr].getvalue(),
            error=self._error,
            count=self._done.count,
            duration_s=self._done.duration_s,
            changes=self._done.changes,
            truncated=self._done.truncated,
            notes=self._done.notes,
        )
