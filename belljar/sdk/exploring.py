"""Best of N over forks: candidates, what became of them, and which one wins. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from belljar.sdk.errors import ExploreError

MAX_BRANCHES = 16
TAIL_BYTES = 4096
MARKER = "/tmp/.belljar-explore"
WATCHED = "/app /work /workspace /root /home"
MAX_FILES = 200


@dataclass
class Candidate:
    """One branch: a command, or a function that is given the forked sandbox."""

    label: str
    cmd: str | None = None
    fn: Callable[[Any], Any] | None = None
    timeout_s: float = 60.0
    env: dict[str, str] | None = None
    score: float | None = None

    @staticmethod
    def shell(label: str, cmd: str, **more: Any) -> Candidate:
        return Candidate(label, cmd=cmd, **more)

    @staticmethod
    def call(label: str, fn: Callable[[Any], Any], **more: Any) -> Candidate:
        return Candidate(label, fn=fn, **more)

    @property
    def line(self) -> str:
        """The command with its environment."""
        prefix = "".join(f"{name}={shlex.quote(str(value))} " for name, value in (self.env or {}).items())
        return prefix + (self.cmd or "")


@dataclass
class BranchOutcome:
    """What became of one candidate."""

    label: str
    sandbox_id: str
    ok: bool
    score: float
    exit_code: int | None
    stdout_tail: str
    stderr_tail: str
    files_changed: list[str]
    duration_ms: int
    value: Any = None
    error: str | None = None
    timed_out: bool = False
    _sandbox: Any = field(repr=False, default=None)


@dataclass
class ExploreResult:
    """A finished exploration. `winner` is a sandbox of its own by now; the others have ended."""

    winner: Any
    winner_outcome: BranchOutcome | None
    outcomes: list[BranchOutcome]
    tree_id: str
    reaped: list[str]
    reap_failures: dict[str, str]
    errors: list[str]

    def best(self, n: int = 1) -> list[BranchOutcome]:
        return self.outcomes[:n]

    def table(self) -> str:
        rows = ["  label                score  ok  exit      ms  files"]
        for outcome in self.outcomes:
            mark, ok = "✓" if outcome is self.winner_outcome else " ", "y" if outcome.ok else "n"
            rows.append(
                f"{mark} {outcome.label[:18]:<18}  {outcome.score:>6.2f}  {ok:<2}  {outcome.exit_code!s:>4}  "
                f"{outcome.duration_ms:>6}  {len(outcome.files_changed)}"
            )
        return "\n".join(rows)


def check_candidates(candidates: Sequence[Candidate | str]) -> list[Candidate]:
    found = [Candidate.shell(item, item) if isinstance(item, str) else item for item in candidates]
    if not found:
        raise ExploreError("there are no candidates to explore")
    if len(found) > MAX_BRANCHES:
        raise ExploreError(f"{len(found)} candidates are more than the {MAX_BRANCHES} branches of one tree; take several rounds")
    return found


def pick(outcomes: Sequence[BranchOutcome], select: str | Callable[..., BranchOutcome]) -> BranchOutcome:
    """Best score first, then the faster one, then the earlier label."""
    if callable(select):
        return select(list(outcomes))
    sign = 1 if select == "min" else -1
    return min(outcomes, key=lambda outcome: (sign * outcome.score, outcome.duration_ms, outcome.label))


def tail(text: str) -> str:
    return text.encode("utf-8", "replace")[-TAIL_BYTES:].decode("utf-8", "replace")
