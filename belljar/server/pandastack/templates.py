"""Templates: those of this host, which all workspaces share."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import Forbidden
from belljar.server.answers import answer
from belljar.server.auth import service_of
from belljar.service.values import TemplateInfo


def render_template(info: TemplateInfo) -> dict[str, Any]:
    manifest = info.manifest
    return {
        "name": info.name,
        "aliases": list(info.aliases),
        "description": info.description,
        "size_bytes": info.size_bytes,
        "cpu": manifest.vcpus if manifest else 0,
        "memory_mb": manifest.memory_mib if manifest else 0,
        "is_global": True,
    }


async def list_all(request: Request) -> Response:
    return answer([render_template(info) for info in await service_of(request).templates()])


async def get(request: Request) -> Response:
    return answer(render_template(await service_of(request).template(request.path_params["name"])))


async def delete(request: Request) -> Response:
    await service_of(request).template(request.path_params["name"])
    raise Forbidden("global templates cannot be deleted; `belljar template rm` removes one from its host")


ROUTES = [
    Route("/templates", list_all),
    Route("/templates/{name}", get),
    Route("/templates/{name}", delete, methods=["DELETE"]),
]
