"""Errors as HTTP answers. Every dialect starts from the same problem and only writes it down in its own shape."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.exceptions import HTTPException

from belljar.errors import BelljarError

# Clients take these words in a 5xx for a guest that is still booting, and try again for 20 seconds. No message of ours means that.
WARM_UP_WORDS = ("connect: connection refused", "no route to host", "i/o timeout")
MAX_MESSAGE_CHARS = 4000


class RunFailed(Exception):
    """A program that did not run to its end, in a dialect that answers 502 for it."""


@dataclass(frozen=True)
class Problem:
    """What went wrong, ready to be written down."""

    status: int
    code: str
    message: str


def problem_of(error: Exception, method: str, path: str, home: str | None = None) -> Problem:
    """`home` is the server's own folder, which is nobody else's business."""
    if isinstance(error, BelljarError):
        message = error.message.replace(home, "$BELLJAR_HOME") if home else error.message
        return Problem(error.status, error.code, _clean(message, error.status))
    if isinstance(error, RunFailed):
        return Problem(502, "run_failed", _clean(str(error), 502))
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return Problem(404, "not_found", f"there is no route {method} {path[:200]}")
        code = "method_not_allowed" if error.status_code == 405 else "invalid_input"
        return Problem(error.status_code, code, str(error.detail) or "the request cannot be answered")
    return Problem(500, "internal", "internal error; the server's log has the details")


def _clean(message: str, status: int) -> str:
    text = message[:MAX_MESSAGE_CHARS] or "no reason was given"
    if status >= 500:
        for words in WARM_UP_WORDS:
            place = text.lower().find(words)
            while place >= 0:
                text = text[:place] + words.replace(" ", "-").replace("/", "-") + text[place + len(words) :]
                place = text.lower().find(words)
    return text
