"""Code contexts, which this dialect calls repl sessions."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import ContextNotFound
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import MAX_CODE_JSON_BYTES, OF_A_CONTEXT, OF_A_GUEST
from belljar.server.patience import patiently
from belljar.server.shapes import TIME, answered, flag, listing, maybe, number, record, text, whole
from belljar.service import contexts
from belljar.service.running import raise_if_timed_out
from belljar.service.values import Execution, Result

DEFAULT_TIMEOUT_MS = 30_000

CREATE = record({}, {"language": text("Of the code.", default="python", examples=["python"])})
RUN = record(
    {},
    {
        "code": text("One cell.", empty=True, nul=True, default="", examples=["1 + 1"]),
        "timeout_ms": number("It is stopped after that; more than 0.", default=DEFAULT_TIMEOUT_MS),
    },
)
ONCE = record({}, {**RUN["properties"], **CREATE["properties"]})
LANGUAGES = ("bash", "javascript", "python", "typescript")
MADE = answered({"id": text(), "session_id": text(), "sandbox_id": text(), "language": text()})
SESSION = answered(
    {"id": text(), "sandbox_id": text(), "language": text(), "created_at": TIME, "cells": whole(), "state": text()}, name="Session"
)
BUNDLE = {"type": "object", "additionalProperties": {"type": "string"}, "description": "MIME type to text; bytes are base64."}
EXECUTION = answered(
    {
        "stdout": text(empty=True, nul=True),
        "stderr": text(empty=True, nul=True),
        "exit": whole("0, or 1 if it failed."),
        "results": listing(BUNDLE, "The value of the last expression first."),
        "error": maybe(text("The traceback.", nul=True)),
        "error_kind": maybe(text()),
        "state_lost": flag("The context's variables are gone."),
        "execution_count": maybe(whole()),
        "duration_ms": whole(),
        "notes": listing(text(), "What else happened while it ran, such as connections that were refused."),
    },
    name="ReplExecution",
)


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
    made = await patiently(request, contexts.create(workspace_of(request), sandbox_id, fields.text("language", "python")))
    return answer({"id": made.id, "session_id": made.id, "sandbox_id": sandbox_id, "language": made.language}, 201)


async def list_all(request: Request) -> Response:
    sandbox_id = request.path_params["id"]
    found = await contexts.list_all(workspace_of(request), sandbox_id)
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
    wishes = contexts.Wishes(timeout_s=timeout_s)
    # A session that was closed is gone: its client must not find itself in an empty one.
    work = contexts.run(workspace_of(request), path["id"], path["session"], fields.text("code", ""), wishes, make=False)
    return answer(render_execution(raise_if_timed_out(await patiently(request, work, cancel=True), timeout_s)))


async def run_once(request: Request) -> Response:
    fields = await read_fields(request)
    timeout_s = fields.number("timeout_ms", DEFAULT_TIMEOUT_MS) / 1000
    language, code = fields.text("language", "python"), fields.text("code", "")
    work = contexts.run_once(workspace_of(request), request.path_params["id"], language, code, timeout_s)
    return answer(render_execution(raise_if_timed_out(await patiently(request, work, cancel=True), timeout_s)))


async def list_languages(request: Request) -> Response:
    return answer({"languages": list(LANGUAGES)})


async def delete(request: Request) -> Response:
    await contexts.delete(workspace_of(request), request.path_params["id"], request.path_params["session"])
    return nothing()


ROUTES = [
    call(
        "POST",
        "/sandboxes/{id}/repl/sessions",
        create,
        "Make a code context",
        body=CREATE,
        gives=MADE,
        status=201,
        errors=OF_A_CONTEXT,
    ),
    call("GET", "/sandboxes/{id}/repl/sessions", list_all, "List the code contexts", gives=listing(SESSION), errors=OF_A_GUEST),
    call(
        "POST",
        "/sandboxes/{id}/repl/sessions/{session}/run",
        run,
        "Run code in a context",
        about="An exception in the code is a 200 with `error`; a time limit that ran out is a 504.",
        body=RUN,
        max_body=MAX_CODE_JSON_BYTES,
        gives=EXECUTION,
        errors=(*OF_A_CONTEXT, ContextNotFound),
    ),
    call("DELETE", "/sandboxes/{id}/repl/sessions/{session}", delete, "End a context", errors=(*OF_A_GUEST, ContextNotFound)),
    call(
        "POST",
        "/sandboxes/{id}/repl",
        run_once,
        "Run code once, in a context of its own",
        body=ONCE,
        max_body=MAX_CODE_JSON_BYTES,
        gives=EXECUTION,
        errors=OF_A_CONTEXT,
    ),
    call(
        "GET",
        "/repl/languages",
        list_languages,
        "List languages",
        about="Those that Belljar itself brings. A template may lack some and have others: `GET /sandboxes/{id}/contexts` knows.",
        gives=answered({"languages": listing(text())}),
    ),
]
