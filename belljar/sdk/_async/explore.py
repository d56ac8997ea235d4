"""Try several things at once, each in a fork of its own, and keep the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from belljar.errors import BelljarError
from belljar.sdk._async.adaptors import call, result_of, run_all
from belljar.sdk.errors import ExploreError, SandboxTimeout
from belljar.sdk.exploring import (
    MARKER,
    MAX_FILES,
    WATCHED,
    BranchOutcome,
    Candidate,
    ExploreResult,
    check_candidates,
    pick,
    tail,
)

if TYPE_CHECKING:
    from belljar.sdk._async.sandbox import AsyncSandbox

LOOK_S = 10


async def explore(
    sandbox: AsyncSandbox,
    candidates: Sequence[Candidate | str],
    *,
    score_fn: Callable[[AsyncSandbox, BranchOutcome], Any] | None = None,
    select: str | Callable[[list[BranchOutcome]], BranchOutcome] = "max",
    require_success: bool = True,
    max_concurrency: int | None = None,
    cleanup_losers: bool = True,
    promote_winner: bool = True,
    capture_files: bool | str = True,
    ttl_seconds: int = 600,
    on_outcome: Callable[[BranchOutcome], object] | None = None,
) -> ExploreResult:
    """Run every candidate in a fork of `sandbox`, score them, promote the winner, end the others.

    A text is a command. The score is that of the candidate, or what `score_fn(sandbox, outcome)` says, or 1 for success; `select`
    is "max", "min" or a function that picks. Branches that are forgotten, because this program died, end after `ttl_seconds`.
    """
    wanted = check_candidates(candidates)
    children = await sandbox.fork_tree(len(wanted), metadata={"explore": "1", "explore_ttl": str(int(ttl_seconds))})
    errors = [] if len(children) == len(wanted) else [f"{len(wanted)} branches were asked for, and {len(children)} made"]

    async def branch(pair: tuple[AsyncSandbox, Candidate]) -> BranchOutcome:
        outcome = await _run(*pair, capture_files)
        await _score(outcome, pair[1], score_fn)
        await call(on_outcome, outcome)
        return outcome

    try:
        outcomes = await run_all(branch, list(zip(children, wanted, strict=False)), max_concurrency or 4)
        viable = [outcome for outcome in outcomes if outcome.ok or not require_success]
        if not viable:
            told = ", ".join(f"{outcome.label}: {outcome.error or outcome.exit_code}" for outcome in outcomes)
            raise ExploreError(f"no branch succeeded ({told})")
        best = pick(viable, select)
    except BaseException:
        await _end(children)
        raise
    outcomes.sort(key=lambda outcome: (outcome.score, -outcome.duration_ms), reverse=select != "min")
    tree_id = next((child.metadata["fork_tree_id"] for child in children if "fork_tree_id" in child.metadata), "")
    winner: AsyncSandbox = best._sandbox
    reaped: list[str] = []
    failures: dict[str, str] = {}
    if promote_winner:
        try:
            done = await winner.promote(cleanup_siblings=cleanup_losers, tree_id=tree_id or None)
            reaped, failures = list(done.get("deleted") or []), dict(done.get("failures") or {})
        except BelljarError as problem:
            errors.append(f"the winner could not be promoted: {problem.message}")
    if cleanup_losers:
        reaped += await _end([child for child in children if child.id != winner.id and child.id not in reaped])
    return ExploreResult(winner if promote_winner else None, best, outcomes, tree_id, reaped, failures, errors)


async def _run(child: AsyncSandbox, candidate: Candidate, capture: bool | str) -> BranchOutcome:
    began = time.monotonic()
    outcome = BranchOutcome(candidate.label, child.id, False, 0.0, None, "", "", [], 0, _sandbox=child)
    try:
        if capture:
            await child.exec(f"touch {MARKER}", timeout_seconds=LOOK_S)
        if candidate.fn is not None:
            outcome.value = await result_of(candidate.fn, child)
            outcome.ok = True
        elif candidate.cmd is not None:
            done = await child.exec(candidate.line, timeout_seconds=candidate.timeout_s)
            outcome.exit_code, outcome.ok = done.exit_code, done.exit_code == 0
            outcome.stdout_tail, outcome.stderr_tail = tail(done.stdout), tail(done.stderr)
        else:
            outcome.error = "the candidate has neither a command nor a function"
        if capture and outcome.ok:
            outcome.files_changed = await _changed(child, capture if isinstance(capture, str) else WATCHED)
    except Exception as problem:  # whatever a candidate does wrong stays in its branch
        outcome.error, outcome.ok = str(problem) or type(problem).__name__, False
        outcome.timed_out = isinstance(problem, SandboxTimeout)
    outcome.duration_ms = int((time.monotonic() - began) * 1000)
    return outcome


async def _changed(child: AsyncSandbox, roots: str) -> list[str]:
    found = await child.exec(f"find {roots} -type f -newer {MARKER} 2>/dev/null | head -n {MAX_FILES}", timeout_seconds=LOOK_S)
    return [line for line in found.stdout.splitlines() if line.strip()]


async def _score(outcome: BranchOutcome, candidate: Candidate, score_fn: Callable[..., Any] | None) -> None:
    if candidate.score is not None:
        outcome.score = float(candidate.score)
    elif score_fn is None:
        outcome.score = 1.0 if outcome.ok else 0.0
    else:
        try:
            outcome.score = float(await result_of(score_fn, outcome._sandbox, outcome))
        except Exception as problem:  # a scorer that fails must not cost the other branches
            outcome.error = outcome.error or f"score_fn raised {type(problem).__name__}: {problem}"


async def _end(children: Sequence[AsyncSandbox]) -> list[str]:
    ended = []
    for child in children:
        try:
            await child.kill()
            ended.append(child.id)
        except BelljarError:
            pass  # its time to live will
    return ended
