"""Code contexts: interpreters that keep their state, and cells as whole executions or event by event.

A context is named by its id, or as `default` (the first Python one) or `default:<language>`. Running a cell makes those if need be.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import Conflict, ContextNotFound, NotFound
from belljar.server.answers import answer, event_stream, nothing, sse, timestamp
from belljar.server.asking import Fields, query_flag, query_of, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import MAX_CODE_JSON_BYTES, OF_A_COMMAND, OF_A_CONTEXT, Media, events
from belljar.server.patience import patiently
from belljar.server.shapes import (
    ANYTHING,
    TIME,
    answered,
    choice,
    environment,
    flag,
    listing,
    maybe,
    number,
    record,
    switch,
    text,
    whole,
)
from belljar.server.telling import last_words
from belljar.service import contexts
from belljar.service.contexts import Wishes
from belljar.service.values import CellEvent, ContextInfo, Result, cell_events

MAX_BUDGET_BYTES = 64 * 1024 * 1024

CONTEXT = answered(
    {
        "id": text(),
        "language": text(),
        "created_at": TIME,
        "state": choice(("idle", "busy", "starting")),
        "cells": whole("Run so far."),
        "queued": whole("Waiting."),
        "default": flag("The one that the template brings."),
        "pid": maybe(whole()),
    },
    name="Context",
)
VARIABLE = answered(
    {
        "name": text(empty=True),
        "type": text(empty=True),
        "shape": maybe(text(empty=True)),
        "size_bytes": maybe(whole()),
        "preview": text(empty=True, nul=True),
    },
    name="Variable",
)
CUT = maybe(
    answered({"omitted": whole(), "files": listing(text(empty=True)), "complete": flag(), "head": maybe(whole())}, name="Cut")
)
RESULT_FIELDS = {
    "main": flag("The value of the last expression."),
    "data": {"type": "object", "additionalProperties": {"type": "string"}, "description": "By MIME type."},
    "binary": listing(text(), "The types whose data is base64."),
    "metadata": {"type": "object"},
}
ERROR = answered(
    {
        "kind": choice(("exception", "timeout", "interrupted", "out_of_memory", "died", "disk_full", "exit")),
        "name": text(empty=True, nul=True),
        "value": text(empty=True, nul=True),
        "traceback": listing(text(empty=True, nul=True)),
        "state_lost": flag("The interpreter was started afresh; its variables are gone."),
        "peak_memory_bytes": maybe(whole()),
    },
    name="CellError",
)
END = {
    "id": text(),
    "count": maybe(whole()),
    "duration_s": number(),
    "changes": ANYTHING,
    "truncated": answered({"stdout": CUT, "stderr": CUT, "results": CUT}),
    "notes": listing(text(), "What else happened while it ran, such as connections that were refused."),
}
EXECUTION = answered(
    {
        **END,
        "stdout": text(empty=True, nul=True),
        "stderr": text(empty=True, nul=True),
        "results": listing(answered(RESULT_FIELDS, name="Result")),
        "error": maybe(ERROR),
    },
    name="Execution",
)
TEXT = answered({"text": text(empty=True, nul=True)})
CELL_EVENTS = events(
    started=answered({"id": text(), "count": maybe(whole())}),
    stdout=TEXT,
    stderr=TEXT,
    result=answered({**RESULT_FIELDS, "display_id": maybe(text(empty=True)), "update": flag()}),
    clear=answered({"wait": flag()}),
    error=ERROR,
    done=answered(END),
    failed=answered({"error": text(), "code": text()}, "The stream broke; nothing follows."),
)
CREATE = {
    "language": text("One of the sandbox's languages.", most=128),
    "cwd": text("The folder to start in."),
    "env": environment(),
    "user": text("Who runs it.", most=256),
}
RUN = {
    "timeout_seconds": number("Counted from its start; the cell is interrupted then."),
    "stdin": text("What the cell reads as its input.", empty=True, nul=True),
    "changes": flag("Say which variables and files the cell changed."),
    "on_disconnect": choice(("interrupt", "continue"), "What becomes of the cell when the client goes away."),
    "max_output": whole("Bytes of each stream that come back.", 0, MAX_BUDGET_BYTES),
    "max_results": whole("Bytes of all results that come back.", 0, MAX_BUDGET_BYTES),
}


def render_context(info: ContextInfo) -> dict[str, Any]:
    return {**asdict(info), "created_at": timestamp(info.created_at)}


def render_result(result: Result, update: bool) -> dict[str, Any]:
    return {**result.to_json(), "display_id": result.display_id, "update": update}


def parse_wishes(fields: Fields) -> Wishes:
    usual = Wishes()
    return Wishes(
        timeout_s=fields.value("timeout_seconds"),
        stdin=fields.optional_text("stdin"),
        changes=fields.flag("changes"),
        on_disconnect=fields.value("on_disconnect") or usual.on_disconnect,
        max_output=fields.whole("max_output", usual.max_output),
        max_results=fields.whole("max_results", usual.max_results),
    )


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    work = contexts.create(
        workspace_of(request),
        request.path_params["id"],
        fields.text("language", "python"),
        cwd=fields.optional_text("cwd"),
        env=fields.labels("env") or None,
        user=fields.optional_text("user"),
    )
    return answer(render_context(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    workspace, sandbox_id = workspace_of(request), request.path_params["id"]
    found = await contexts.list_all(workspace, sandbox_id)
    return answer(
        {
            "contexts": [render_context(info) for info in found],
            "languages": await contexts.languages(workspace, sandbox_id),
        }
    )


async def get(request: Request) -> Response:
    path = request.path_params
    return answer(render_context(await contexts.find(workspace_of(request), path["id"], path["context"])))


async def delete(request: Request) -> Response:
    path = request.path_params
    await contexts.delete(workspace_of(request), path["id"], path["context"])
    return nothing()


async def run(request: Request) -> Response:
    fields, path, workspace = await read_fields(request), request.path_params, workspace_of(request)
    code, wishes = fields.text("code", ""), parse_wishes(fields)
    if query_flag(request, "stream"):
        source = contexts.stream(workspace, path["id"], path["context"], code, wishes)
        return await event_stream(_events(source), last_words(request, "failed"))
    work = contexts.run(workspace, path["id"], path["context"], code, wishes)
    return answer((await patiently(request, work, cancel=True)).to_json())


async def attach(request: Request) -> Response:
    path = request.path_params
    source = contexts.attach(workspace_of(request), path["id"], path["context"], query_of(request).get("execution") or None)
    return await event_stream(_events(source), last_words(request, "failed"), endless=True)


async def _events(source: AsyncGenerator[CellEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        async for event in source:
            yield _render_event(event)


def _render_event(event: CellEvent) -> bytes:
    match event:
        case cell_events.Output(result, update):
            return sse("result", render_result(result, update))
        case cell_events.Failure(error):
            return sse("error", asdict(error))
        case _:
            return sse(type(event).__name__.lower(), asdict(event))


async def interrupt(request: Request) -> Response:
    path = request.path_params
    return answer({"interrupted": await contexts.interrupt(workspace_of(request), path["id"], path["context"])})


async def restart(request: Request) -> Response:
    path = request.path_params
    await patiently(request, contexts.restart(workspace_of(request), path["id"], path["context"]))
    return nothing()


async def variables(request: Request) -> Response:
    path = request.path_params
    found = await contexts.variables(workspace_of(request), path["id"], path["context"])
    return answer({"variables": [asdict(variable) for variable in found]})


ALL, ONE = "/sandboxes/{id}/contexts", "/sandboxes/{id}/contexts/{context}"
OF_ONE = (*OF_A_CONTEXT, ContextNotFound)

ROUTES = [
    call(
        "POST",
        ALL,
        create,
        "Make a context",
        body=record({}, CREATE),
        gives=CONTEXT,
        status=201,
        errors=(*OF_A_COMMAND, *OF_A_CONTEXT, Conflict),
    ),
    call(
        "GET",
        ALL,
        list_all,
        "List contexts and languages",
        gives=answered({"contexts": listing(CONTEXT), "languages": listing(text())}),
        errors=OF_A_CONTEXT,
    ),
    call("GET", ONE, get, "Look at a context", gives=CONTEXT, errors=OF_ONE),
    call("DELETE", ONE, delete, "End a context", errors=OF_ONE),
    call(
        "POST",
        f"{ONE}/run",
        run,
        "Run a cell",
        about="What goes wrong in the cell is in `error`, a time limit included. With `stream=1` the events come as they happen.",
        query=record({}, {"stream": switch("Answer with server-sent events.")}),
        body=record({"code": text("The cell.", empty=True, nul=True)}, RUN),
        max_body=MAX_CODE_JSON_BYTES,
        gives=(Media("application/json", EXECUTION), CELL_EVENTS),
        errors=(*OF_ONE, Conflict),
    ),
    call(
        "GET",
        f"{ONE}/attach",
        attach,
        "Follow the running cell, or the last one, from its start",
        query=record({}, {"execution": text("The id of an execution.", most=128)}),
        gives=CELL_EVENTS,
        errors=(*OF_ONE, NotFound),
    ),
    call(
        "POST",
        f"{ONE}/interrupt",
        interrupt,
        "Stop the running cell and keep the state",
        gives=answered({"interrupted": flag("False if no cell was running.")}),
        errors=OF_ONE,
    ),
    call("POST", f"{ONE}/restart", restart, "Start the interpreter afresh, under the same id", errors=(*OF_ONE, Conflict)),
    call(
        "GET",
        f"{ONE}/variables",
        variables,
        "List the names that cells have defined",
        gives=answered({"variables": listing(VARIABLE)}),
        errors=(*OF_ONE, Conflict),
    ),
]
