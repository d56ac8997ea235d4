"""All routes of the dialect, and its error shape."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import Response

from belljar.server.answers import answer
from belljar.server.dialect import make_dialect
from belljar.server.problems import Problem
from belljar.server.sandbase import files, filesystem, processes, sandboxes
from belljar.server.shapes import Shape, text, whole

NOUNS = (sandboxes, processes, files, filesystem)
ERROR: Shape = {
    "type": "object",
    "properties": {"code": whole("The status."), "message": text("What went wrong, in words."), "error": text("The same.")},
    "required": ["code", "message", "error"],
    "x-name": "SandBaseError",
}


def sandbase() -> Starlette:
    return make_dialect([route for noun in NOUNS for route in noun.ROUTES], render, ERROR)


def render(problem: Problem) -> Response:
    # `error` is for clients of other dialects that went to the wrong place: they show it.
    return answer({"code": problem.status, "message": problem.message, "error": problem.message}, problem.status)
