"""Sandboxes as a whole: create, look, end, pause, sleep."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import DeadlineExceeded, NotSupported, SnapshotNotFound, TemplateNotFound
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import query_of, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE, OF_A_SANDBOX, OF_A_START
from belljar.server.own.egress import EGRESS_FIELDS, parse_create
from belljar.server.paging import HEADERS, PARAMETERS, cut, labels_of, page_of
from belljar.server.pandastack.templates import RUN, run_kind
from belljar.server.patience import patiently
from belljar.server.shapes import TIME, answered, choice, environment, flag, labels, listing, maybe, number, record, text, whole
from belljar.service.values import SandboxRecord

DEFAULT_TEMPLATE = "code-interpreter"
# What the TypeScript client asks for when its user names no template.
TEMPLATES = {"ubuntu-24.04": "base"}
STATUS = {"dead": "failed"}
SECRET = "secret."
STATES = ["running", "paused", "hibernated", "failed"]
ENDING = "Doing it again is no error, as long as the sandbox was once this workspace's."
OF_A_CREATE = (*OF_A_START, NotSupported, TemplateNotFound, SnapshotNotFound, DeadlineExceeded)

CREATE = record(
    {},
    {
        "template": text("Name of a template.", default=DEFAULT_TEMPLATE, examples=["base"]),
        "metadata": labels("Labels. Those that begin with `secret.` are never shown."),
        "ttl_seconds": number("Time to live; 0 is without end.", default=0),
        "persistent": flag("Sleeps when nobody uses it, in place of running on.", default=False),
        "from_snapshot": text("Id of a snapshot to start from, in place of a template."),
        "env": environment("Environment variables of everything that runs in it. Never shown again."),
        "disk_mb": whole("The size of its disk; it may be larger than the template's, not smaller.", 1, 2**31),
        "cpu": number("Ignored: it is the template's."),
        "memory_mb": number("Ignored: it is the template's."),
        "disk_gb": number("Ignored: it is the template's."),
        **EGRESS_FIELDS,
        "volumes": {"description": "Refused: there are none on this server."},
    },
)
SANDBOX = answered(
    {
        "id": text(),
        "template": text(),
        "cpu": whole(),
        "memory_mb": whole(),
        "disk_mb": whole(),
        "status": choice(STATES),
        "reason": maybe(text("Why it is in that state.")),
        "persistent": flag(),
        "ttl_seconds": whole("0 is without end."),
        "created_at": TIME,
        "expires_at": maybe(TIME),
        "from_snapshot": maybe(text()),
        "parent_id": maybe(text("The sandbox that it was forked from.")),
        "guest_ip": {"type": "null"},
        "boot_mode": text(),
        "run": RUN,
        "workspace": text(),
        "metadata": labels(most=256),
    },
    name="Sandbox",
)
STATUS_ONLY = answered({"status": choice(STATES)})


def render_sandbox(record: SandboxRecord) -> dict[str, Any]:
    """`cpu` and `memory_mb` are never null, which the clients could not read."""
    return {
        "id": record.id,
        "template": record.template,
        "cpu": record.vcpus,
        "memory_mb": record.memory_mib,
        "disk_mb": record.disk_mib,
        "status": STATUS.get(record.state, record.state),
        "reason": record.reason,
        "persistent": record.persistent,
        "ttl_seconds": int(record.ttl_s or 0),
        "created_at": timestamp(record.created_at),
        "expires_at": timestamp(record.expires_at),
        "from_snapshot": record.origin_snapshot,
        "parent_id": record.parent,
        "guest_ip": None,
        "boot_mode": "restore",
        "run": run_kind(record.template),
        "workspace": record.workspace,
        "metadata": {name: value for name, value in record.metadata.items() if not name.startswith(SECRET)},
    }


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    if "volumes" in fields:
        raise NotSupported("volumes are not available on this server; create the sandbox without them")
    template = fields.text("template", DEFAULT_TEMPLATE)
    work = workspace_of(request).create(
        TEMPLATES.get(template, template),
        snapshot=fields.optional_text("from_snapshot"),
        metadata=fields.labels("metadata"),
        ttl_s=fields.number("ttl_seconds", 0) or None,
        persistent=fields.flag("persistent"),
        env=fields.labels("env"),
        disk_mib=fields.value("disk_mb"),
        **parse_create(fields),
    )
    return answer(render_sandbox(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    page, status = page_of(request), query_of(request).get("status")
    state = next((state for state, shown in STATUS.items() if shown == status), status) or None
    found, headers = cut(await workspace_of(request).list(labels_of(request), state=state, page=page), page)
    return answer([render_sandbox(record) for record in found], headers=headers)


async def get(request: Request) -> Response:
    return answer(render_sandbox(await workspace_of(request).get(request.path_params["id"])))


async def delete(request: Request) -> Response:
    await workspace_of(request).kill(request.path_params["id"])
    return nothing()


async def pause(request: Request) -> Response:
    await workspace_of(request).pause(request.path_params["id"])
    return nothing()


async def resume(request: Request) -> Response:
    await patiently(request, workspace_of(request).resume(request.path_params["id"]))
    return nothing()


async def hibernate(request: Request) -> Response:
    await patiently(request, workspace_of(request).hibernate(request.path_params["id"]))
    return answer({"status": "hibernated"})


async def wake(request: Request) -> Response:
    await patiently(request, workspace_of(request).wake(request.path_params["id"]))
    return answer({"status": (await workspace_of(request).get(request.path_params["id"])).state})


ROUTES = [
    call("POST", "/sandboxes", create, "Create a sandbox", body=CREATE, gives=SANDBOX, status=201, errors=OF_A_CREATE),
    call(
        "GET",
        "/sandboxes",
        list_all,
        "List the sandboxes, oldest first",
        about="`metadata.<name>=<value>`, as often as wanted: only those that carry it.",
        query=record({}, {"status": choice(STATES), **PARAMETERS}),
        gives=listing(SANDBOX),
        headers=HEADERS,
    ),
    call("GET", "/sandboxes/{id}", get, "Look at a sandbox", about="Never wakes it.", gives=SANDBOX, errors=OF_A_SANDBOX),
    call("DELETE", "/sandboxes/{id}", delete, "End a sandbox", about=ENDING, errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/pause", pause, "Pause a sandbox", errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/resume", resume, "Resume a paused sandbox", errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/hibernate", hibernate, "Put a sandbox to sleep", gives=STATUS_ONLY, errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/stop", hibernate, "The same as hibernate", gives=STATUS_ONLY, errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/wake", wake, "Wake a sandbox", gives=STATUS_ONLY, errors=OF_A_MACHINE),
    call("POST", "/sandboxes/{id}/start", wake, "The same as wake", gives=STATUS_ONLY, errors=OF_A_MACHINE),
]
