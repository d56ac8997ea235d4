"""Templates: those of this host, which all workspaces share."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import Forbidden, TemplateNotFound
from belljar.server.answers import answer
from belljar.server.auth import service_of
from belljar.server.declaring import call
from belljar.server.shapes import answered, choice, flag, listing, text, whole
from belljar.service.values import TemplateInfo

# What a template's sandboxes are for, as far as `Sandbox.run(x)` of the SDK is concerned: `x` is a cell for the first context of
# these, and a command for all others. By name, because `code-interpreter` has the same context and is driven by commands.
RUN_CODE = ("python-data",)
RUN = choice(("code", "shell"), "What `Sandbox.run` of the SDK takes its text for.")

TEMPLATE = answered(
    {
        "name": text(),
        "aliases": listing(text()),
        "description": text(empty=True),
        "size_bytes": whole(),
        "cpu": whole(),
        "memory_mb": whole(),
        "is_global": flag(),
        "run": RUN,
    },
    name="Template",
)


def run_kind(template: str) -> str:
    return "code" if template in RUN_CODE else "shell"


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
        "run": run_kind(info.name),
    }


async def list_all(request: Request) -> Response:
    return answer([render_template(info) for info in await service_of(request).templates()])


async def list_builds(request: Request) -> Response:
    return answer([])  # templates are built on the host, never by a call


async def get(request: Request) -> Response:
    return answer(render_template(await service_of(request).template(request.path_params["name"])))


async def delete(request: Request) -> Response:
    await service_of(request).template(request.path_params["name"])
    raise Forbidden("global templates cannot be deleted; `belljar template rm` removes one from its host")


ROUTES = [
    call("GET", "/templates", list_all, "List the templates", gives=listing(TEMPLATE)),
    call("GET", "/templates/builds", list_builds, "List the builds: none, they happen on the host", gives=listing({}, most=0)),
    call("GET", "/templates/{name}", get, "Look at a template", gives=TEMPLATE, errors=(TemplateNotFound,)),
    call("DELETE", "/templates/{name}", delete, "Refused: templates belong to the host", errors=(TemplateNotFound,)),
]
