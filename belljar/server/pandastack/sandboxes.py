"""Sandboxes as a whole: create, look, end, pause, sleep."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import InvalidInput, NotSupported
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.own.egress import parse_create
from belljar.server.patience import patiently
from belljar.service.values import SandboxRecord

DEFAULT_TEMPLATE = "code-interpreter"
# What the TypeScript client asks for when its user names no template.
TEMPLATES = {"ubuntu-24.04": "base"}
STATUS = {"dead": "failed"}
SECRET = "secret."


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
        "metadata": {name: value for name, value in record.metadata.items() if not name.startswith(SECRET)},
    }


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    if "volumes" in fields:
        raise NotSupported("volumes are not available on this server; create the sandbox without them")
    template = fields.text("template", DEFAULT_TEMPLATE)
    if not template:
        raise InvalidInput("template is empty")
    work = workspace_of(request).create(
        TEMPLATES.get(template, template),
        snapshot=fields.optional_text("from_snapshot"),
        metadata=fields.labels("metadata"),
        ttl_s=fields.number("ttl_seconds", 0) or None,
        persistent=fields.flag("persistent"),
        **parse_create(fields),
    )
    return answer(render_sandbox(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    return answer([render_sandbox(record) for record in await workspace_of(request).list()])


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
    Route("/sandboxes", create, methods=["POST"]),
    Route("/sandboxes", list_all),
    Route("/sandboxes/{id}", get),
    Route("/sandboxes/{id}", delete, methods=["DELETE"]),
    Route("/sandboxes/{id}/pause", pause, methods=["POST"]),
    Route("/sandboxes/{id}/resume", resume, methods=["POST"]),
    Route("/sandboxes/{id}/hibernate", hibernate, methods=["POST"]),
    Route("/sandboxes/{id}/stop", hibernate, methods=["POST"]),
    Route("/sandboxes/{id}/wake", wake, methods=["POST"]),
    Route("/sandboxes/{id}/start", wake, methods=["POST"]),
]
