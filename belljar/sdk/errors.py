"""Errors as a client sees them: Belljar's class by the answer's code, and the name that PandaStack's client gives its status.

try:
    Sandbox.get("sb-none")
except belljar.NotFoundError: ...           # by status, as with `pandastack`
except belljar.errors.SandboxNotFound: ...  # by code; the same error is both
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from belljar.errors import (
    BY_CODE,
    AnswerLost,
    BelljarError,
    Conflict,
    Forbidden,
    HostSetup,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    Unauthorized,
)

MAX_MESSAGE_CHARS = 4000


class PandastackError(BelljarError):
    """Base of what the SDK raises, under the name that users of `pandastack` know."""


class AuthError(PandastackError):
    """401: no key, or none that is valid."""


class NotFoundError(PandastackError):
    """404."""


class BadRequestError(PandastackError):
    """Any other 4xx."""


class InvalidArgument(BadRequestError, InvalidInput, ValueError):
    """An argument that cannot be right; nothing was sent."""


class ServerError(PandastackError):
    """5xx."""


class ConnectionError(PandastackError):
    """The server could not be reached, or its answer never came."""


class Unreached(ConnectionError, ServerUnreachable):
    """Nothing was sent."""


class Lost(ConnectionError, AnswerLost):
    """It was sent, and what came of it is not known."""


class CannotListen(PandastackError, HostSetup):
    """A port of this machine is taken, or may not be had."""


class SandboxTimeout(PandastackError):
    """A command or cell took longer than its time limit."""

    code, status = "deadline_exceeded", 504


class ExecInterrupted(PandastackError):
    """A stream ended before the command did. Its outcome is not known; what arrived is in `partial_stdout` and `partial_stderr`."""

    code, status, retry = "answer_lost", 502, "unknown"

    def __init__(self, message: str, *, partial_stdout: str = "", partial_stderr: str = "") -> None:
        super().__init__(message)
        self.partial_stdout = partial_stdout
        self.partial_stderr = partial_stderr


class CommandFailed(PandastackError):
    """A command with `check=True` that did not exit with 0."""

    code = "command_failed"

    def __init__(self, message: str, *, exit_code: int = 1, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class TemplateBuildError(PandastackError):
    """A template could not be built; `build` is its last state."""

    code = "build_failed"

    def __init__(self, message: str, *, build: object | None = None) -> None:
        super().__init__(message)
        self.build = build


class CreateCancelled(PandastackError):
    """The `cancel` event of a create or fork was set. Nothing was sent after that."""

    code = "cancelled"


class ExploreError(PandastackError):
    """An exploration without candidates, with too many, or without a branch that can win."""

    code = "explore_failed"


APIConnectionError = ConnectionError


def error_of(status: int, payload: Any, *, method: str, path: str, retry_after: float | None = None) -> PandastackError:
    """The error that an answer stands for. `details` says which request it was."""
    fields = payload if isinstance(payload, dict) else {}
    code = fields.get("code")
    error = _class_of(code if isinstance(code, str) and len(code) <= 64 else "", status)(_message(status, payload))
    more = fields.get("details")
    error.details = {**(more if isinstance(more, dict) else {}), "method": method, "path": path}
    if retry_after is not None:
        error.details["retry_after"] = retry_after
    return error


def error_in_stream(fields: dict[str, Any], *, method: str, path: str) -> PandastackError:
    """The same for an error that came as an event, after the answer had begun with 200."""
    known = BY_CODE.get(str(fields.get("code")))
    return error_of(known.status if known else 500, fields, method=method, path=path)


def _message(status: int, payload: Any) -> str:
    text = payload if isinstance(payload, str) and not payload.lstrip().startswith("<") else ""  # a proxy's page says nothing
    if isinstance(payload, dict):
        text = next((str(payload[key]) for key in ("error", "message", "detail") if payload.get(key)), "")
    return text.strip()[:MAX_MESSAGE_CHARS] or f"the server answered with HTTP {status}"


def _by_status(status: int) -> type[BelljarError]:
    known: dict[int, type[BelljarError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict}
    return known.get(status, InvalidInput if status < 500 else BelljarError)


def _published(status: int) -> type[PandastackError]:
    known = {401: AuthError, 404: NotFoundError}
    return known.get(status, BadRequestError if status < 500 else ServerError)


@lru_cache(maxsize=256)
def _class_of(code: str, status: int) -> type[PandastackError]:
    kind = BY_CODE.get(code) or _by_status(status)
    names: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": __name__, "__reduce__": _reduce}
    names |= {"code": code or kind.code, "status": status, "retry": kind.retry}
    return type(kind.__name__, (_published(status), kind), names)


def _reduce(error: PandastackError) -> tuple[Any, ...]:
    """Made classes have no name that pickle could find them by."""
    return _rebuild, (error.code, error.status, error.message, error.details)


def _rebuild(code: str, status: int, message: str, details: dict[str, Any]) -> PandastackError:
    error = _class_of(code, status)(message)
    error.details = details
    return error
