"""The events of a cell as they happen, and what they add up to. Pure.

Started  (Stdout | Stderr | Output | Clear | Failure)*  Done
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from belljar.sdk.errors import Lost
from belljar.sdk.results import Execution, ExecutionError, Result, parse_ending


@dataclass(frozen=True)
class Started:
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

    fields: Mapping[str, Any]


Event = Started | Stdout | Stderr | Output | Clear | Failure | Done


def parse_event(name: str, fields: Mapping[str, Any]) -> Event | None:
    """An event of the stream; None for one that this version does not know."""
    match name:
        case "started":
            return Started(str(fields.get("id") or ""), fields.get("count"))
        case "stdout":
            return Stdout(str(fields.get("text") or ""))
        case "stderr":
            return Stderr(str(fields.get("text") or ""))
        case "result":
            return Output(Result.from_dict(fields), bool(fields.get("update")))
        case "clear":
            return Clear(bool(fields.get("wait")))
        case "error":
            return Failure(ExecutionError.from_dict(fields))
        case "done":
            return Done(fields)
    return None


class Fold:
    """Adds events up to what a notebook would show below the cell."""

    def __init__(self) -> None:
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._results: list[Result] = []
        self._clear_next = False
        self._error: ExecutionError | None = None
        self._done: Done | None = None

    @property
    def over(self) -> bool:
        return self._done is not None

    def take(self, event: Event) -> None:
        if self._clear_next and isinstance(event, Stdout | Stderr | Output):
            self._clear()
        match event:
            case Stdout(text):
                self._stdout.append(text)
            case Stderr(text):
                self._stderr.append(text)
            case Output(result, update):
                self._show(result, update)
            case Clear(wait):
                self._clear_next = True
                if not wait:
                    self._clear()
            case Failure(error):
                self._error = error  # the last one knows best: an exception may be followed by the kernel's death
            case Done():
                self._done = event

    def _show(self, result: Result, update: bool) -> None:
        if not update:
            self._results.append(result)
        elif result.display_id is not None:
            for place, shown in enumerate(self._results):
                if shown.display_id == result.display_id:
                    self._results[place] = replace(result, main=shown.main)

    def _clear(self) -> None:
        self._clear_next = False
        for shown in (self._results, self._stdout, self._stderr):
            shown.clear()

    @property
    def execution(self) -> Execution:
        """The sum. Raises if the stream broke off before the cell was done."""
        if self._done is None:
            raise Lost("the stream ended before the cell did; `attach` to its context to follow it again")
        return Execution(
            results=list(self._results),
            stdout="".join(self._stdout),
            stderr="".join(self._stderr),
            error=self._error,
            **parse_ending(self._done.fields),
        )
