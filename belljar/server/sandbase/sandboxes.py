"""Sandboxes: create, look, end, pause, and how long they live."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import DeadlineExceeded, TemplateNotFound
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import Fields, query_of, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE, OF_A_SANDBOX, OF_A_START
from belljar.server.patience import patiently
from belljar.server.shapes import TIME, answered, choice, environment, labels, listing, maybe, record, text, whole
from belljar.service.values import SandboxRecord

DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 300, 3600
# What this dialect calls a template that has another name here. Both are understood.
OWN_IDS = {"code-interpreter": "code_interpreter"}
OF_A_CREATE = (*OF_A_START, TemplateNotFound, DeadlineExceeded)

LIFE = whole("Seconds that it lives, from now on.", low=1, high=MAX_TIMEOUT_S, default=DEFAULT_TIMEOUT_S)
CREATE = record(
    {"templateID": text("Name of a template.", examples=["base"])},
    {"timeout": LIFE, "metadata": labels("Labels."), "envVars": environment()},
)
CONNECT = record({}, {"timeout": LIFE})
TIMEOUT = record({"timeout": LIFE})
REFRESH = record({}, {"duration": LIFE})
FILTER = record({}, {"status": text("Only those in this state.")})
SANDBOX = answered(
    {
        "sandboxID": text(),
        "templateID": text(),
        "clientID": text(),
        "status": choice(["running", "paused", "hibernated", "dead"]),
        "startedAt": TIME,
        "endAt": maybe(TIME),
        "metadata": labels(most=256),
    },
    name="SandBaseSandbox",
)


def render_sandbox(record: SandboxRecord) -> dict[str, Any]:
    return {
        "sandboxID": record.id,
        "templateID": OWN_IDS.get(record.template, record.template),
        "clientID": "SandBase",
        "status": record.state,
        "startedAt": timestamp(record.created_at),
        "endAt": timestamp(record.expires_at),
        "metadata": dict(record.metadata),
    }


def _timeout(fields: Fields) -> int:
    return fields.whole("timeout", DEFAULT_TIMEOUT_S)


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    work = workspace_of(request).create(
        fields.text("templateID"), ttl_s=_timeout(fields), metadata=fields.labels("metadata"), env=fields.labels("envVars")
    )
    return answer(render_sandbox(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    wanted = query_of(request).get("status") or None
    return answer([render_sandbox(record) for record in await workspace_of(request).list(state=wanted)])


async def get(request: Request) -> Response:
    return answer(render_sandbox(await workspace_of(request).get(request.path_params["id"])))


async def delete(request: Request) -> Response:
    await workspace_of(request).kill(request.path_params["id"])
    return nothing()


async def pause(request: Request) -> Response:
    await workspace_of(request).pause(request.path_params["id"])
    return nothing()


async def connect(request: Request) -> Response:
    """Back to work, paused or asleep, and so long to live from now on."""
    timeout_s = _timeout(await read_fields(request))
    workspace, sandbox_id = workspace_of(request), request.path_params["id"]
    await workspace.wake(sandbox_id)
    await workspace.resume(sandbox_id)
    await workspace.set_ttl(sandbox_id, timeout_s)
    return answer(render_sandbox(await workspace.get(sandbox_id)))


async def set_timeout(request: Request) -> Response:
    fields = await read_fields(request)
    await workspace_of(request).set_ttl(request.path_params["id"], fields.whole("timeout"))
    return nothing()


async def refresh(request: Request) -> Response:
    """At least so long from now on; never less than before."""
    seconds = (await read_fields(request)).whole("duration", DEFAULT_TIMEOUT_S)
    workspace, sandbox_id = workspace_of(request), request.path_params["id"]
    record = await workspace.get(sandbox_id)
    if record.expires_at is not None and record.expires_at < time.time() + seconds:
        await workspace.set_ttl(sandbox_id, seconds)
    return nothing()


ROUTES = [
    call("POST", "/sandboxes", create, "Create a sandbox", body=CREATE, gives=SANDBOX, status=201, errors=OF_A_CREATE),
    call("GET", "/sandboxes", list_all, "List the sandboxes", query=FILTER, gives=listing(SANDBOX)),
    call("GET", "/sandboxes/{id}", get, "Look at a sandbox", gives=SANDBOX, errors=OF_A_SANDBOX),
    call("DELETE", "/sandboxes/{id}", delete, "End a sandbox", errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/pause", pause, "Pause a sandbox", errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/connect", connect, "Bring it back to work", body=CONNECT, gives=SANDBOX, errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/refreshes", refresh, "Let it live longer", body=REFRESH, errors=OF_A_SANDBOX),
    call("POST", "/sandboxes/{id}/timeout", set_timeout, "Set how long it lives", body=TIMEOUT, errors=OF_A_SANDBOX),
]
