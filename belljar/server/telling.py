"""What a stream says when it breaks in the middle: the same words as an ordinary answer would have, as its last event."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from belljar.errors import BelljarError
from belljar.server.answers import sse
from belljar.server.auth import service_of
from belljar.server.problems import problem_of


def last_words(request: Request, event: str) -> Callable[[BelljarError], bytes]:
    home = str(service_of(request).settings.home)

    def tell(error: BelljarError) -> bytes:
        problem = problem_of(error, request.method, request.scope["path"], home)
        return sse(event, {"error": problem.message, "code": problem.code})

    return tell
