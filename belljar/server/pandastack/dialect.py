"""All routes of the dialect, and its error shape: one flat text, because the clients show and match it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import BaseRoute

from belljar.server.answers import answer
from belljar.server.declaring import Call
from belljar.server.dialect import make_dialect
from belljar.server.pandastack import (
    events,
    exec,
    fork,
    fs,
    lifecycle,
    logs,
    me,
    ports,
    repl,
    sandboxes,
    snapshots,
    templates,
    tokens,
)
from belljar.server.problems import Problem
from belljar.server.shapes import Shape, text

NOUNS = (sandboxes, exec, repl, fs, logs, lifecycle, snapshots, fork, ports, events, templates, tokens, me)

ERROR: Shape = {
    "type": "object",
    "properties": {"error": text("What went wrong, in words."), "code": {"type": "string"}},
    "required": ["error", "code"],
    "x-name": "Error",
}


def pandastack(version: Call, others: Sequence[BaseRoute]) -> Starlette:
    """`others` are routes beside this dialect's own, with the same errors."""
    return make_dialect([*(route for noun in NOUNS for route in noun.ROUTES), version, *others], render, ERROR)


def render(problem: Problem) -> Response:
    return answer({"error": problem.message, "code": problem.code}, problem.status)
