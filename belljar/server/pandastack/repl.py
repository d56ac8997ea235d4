"""Code contexts, which this dialect calls repl sessions."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.patience import patiently
from belljar.service.running import create_context, delete_context, list_contexts, run_cell
from belljar.service.values import Execution, Result

DEFAULT_TIMEOUT_MS = 30_000


def render_execution(execution: Execution) -> dict[str, Any]:
    """The main result goes first, because the client's `text` and `png` are those of the first result that has one."""
    error = execution.error
    trace = "\n".join(error.traceback) or str(error) if error is not None else None
    return {
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "exit": 0 if error is None else 1,
        "results": [_bundle(result) for result in sorted(execution.results, key=lambda result: not result.main)],
        "error": trace,
        "error_kind": error.kind if error is not None else None,
        "state_lost": error.state_lost if error is not None else False,
        "execution_count": execution.count,
        "duration_ms": int(execution.duration_s * 1000),
        "notes": list(execution.notes),
    }


def _bundle(result: Result) -> dict[str, str]:
    """Every value is text: JSON as its text, bytes as base64."""
    return {mime: base64.b64encode(value).decode() if isinstance(value, bytes) else value for mime, value in result.data.items()}


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    sandbox_id = request.path_params["id"]
    work = create_context(workspace_of(request), sandbox_id, fields.text("language", "python"))
    context_id, language = await patiently(request, work)
    return answer({"id": context_id, "session_id": context_id, "sandbox_id": sandbox_id, "language": language}, 201)


async def list_all(request: Request) -> Response:
    sandbox_id = request.path_params["id"]
    found = await list_contexts(workspace_of(request), sandbox_id)
    return answer(
        [
            {
                "id": context.id,
                "sandbox_id": sandbox_id,
                "language": context.language,
                "created_at": timestamp(context.created_at),
                "cells": context.cells,
                "state": context.state,
            }
            for context in found
        ]
    )


async def run(request: Request) -> Response:
    fields = await read_fields(request)
    timeout_s = fields.number("timeout_ms", DEFAULT_TIMEOUT_MS) / 1000
    path = request.path_params
    work = run_cell(workspace_of(request), path["id"], path["session"], fields.text("code", ""), timeout_s)
    return answer(render_execution(await patiently(request, work, cancel=True)))


async def delete(request: Request) -> Response:
    await delete_context(workspace_of(request), request.path_params["id"], request.path_params["session"])
    return nothing()


ROUTES = [
    Route("/sandboxes/{id}/repl/sessions", create, methods=["POST"]),
    Route("/sandboxes/{id}/repl/sessions", list_all),
    Route("/sandboxes/{id}/repl/sessions/{session}/run", run, methods=["POST"]),
    Route("/sandboxes/{id}/repl/sessions/{session}", delete, methods=["DELETE"]),
]
