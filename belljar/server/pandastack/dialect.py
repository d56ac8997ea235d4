"""All routes of the dialect, and its error shape: one flat text, because the clients show and match it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer
from belljar.server.dialect import make_dialect
from belljar.server.own import egress
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

NOUNS = (sandboxes, exec, repl, fs, logs, lifecycle, snapshots, fork, ports, events, templates, tokens, me, egress)


def pandastack(version: Callable[[Request], Awaitable[Response]]) -> Starlette:
    routes = [route for noun in NOUNS for route in noun.ROUTES]
    return make_dialect([*routes, Route("/version", version)], render)


def render(problem: Problem) -> Response:
    return answer({"error": problem.message, "code": problem.code}, problem.status)
