"""Errors as HTTP answers. Every dialect starts from the same problem and only writes it down in its own shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from belljar.errors import BelljarError, HostError, SandboxError

# Clients take these words in a 5xx for a guest that is still booting, and try again for 20 seconds. No message of ours means that.
WARM_UP_WORDS = ("connect: connection refused", "no route to host", "i/o timeout")
MAX_MESSAGE_CHARS = 4000
# For what may succeed later and does not know when. Clients give up on a hint that is longer than they want to wait in all.
RETRY_AFTER_S = 1


class RunFailed(Exception):
    """A program that did not run to its end, in a dialect that answers 502 for it."""


@dataclass(frozen=True)
class Problem:
    """What went wrong, ready to be written down."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None  # when the same request may succeed
    is_ours: bool = False  # the host's or a machine's, and not the caller's: whoever runs the server wants to know


def respond(scope: Scope, problem: Problem, render: Callable[[Problem], Response]) -> Response:
    """The answer in a dialect's shape, with what all have in common. What happened is left where counters and log find it."""
    scope["problem"] = problem.code
    if problem.is_ours:
        scope["reason"] = problem.message
    response = render(problem)
    if problem.retry_after_s is not None:
        response.headers["Retry-After"] = str(problem.retry_after_s)
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def problem_of(error: Exception, method: str, path: str, home: str | None = None) -> Problem:
    """`home` is the server's own folder, which is nobody else's business."""
    if isinstance(error, BelljarError):
        message = error.message.replace(home, "$BELLJAR_HOME") if home else error.message
        is_ours = isinstance(error, HostError | SandboxError) and error.status >= 500
        return Problem(error.status, error.code, _clean(message, error.status), _retry_after(error), is_ours)
    if isinstance(error, RunFailed):
        return Problem(502, "run_failed", _clean(str(error), 502))
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return Problem(404, "not_found", f"there is no route {method} {path[:200]}")
        if error.status_code == 405:
            return Problem(405, "method_not_allowed", f"{method[:20]} is not possible on {path[:200]}")
        code = "invalid_input"
        return Problem(error.status_code, code, str(error.detail) or "the request cannot be answered")
    return Problem(500, "internal", "internal error; the server's log has the details")


def _retry_after(error: BelljarError) -> int | None:
    if error.retry != "yes":
        return None
    hint = error.details.get("retry_after_s", RETRY_AFTER_S)
    return min(hint, 3600) if isinstance(hint, int) and hint > 0 else RETRY_AFTER_S


def _clean(message: str, status: int) -> str:
    text = message[:MAX_MESSAGE_CHARS] or "no reason was given"
    if status >= 500:
        for words in WARM_UP_WORDS:
            place = text.lower().find(words)
            while place >= 0:
                text = text[:place] + words.replace(" ", "-").replace("/", "-") + text[place + len(words) :]
                place = text.lower().find(words)
    return text
