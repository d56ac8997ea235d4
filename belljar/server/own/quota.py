"""What a workspace may have, and what it has of it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import Forbidden
from belljar.server.answers import answer
from belljar.server.asking import read_fields
from belljar.server.auth import caller_of, service_of
from belljar.server.declaring import call
from belljar.server.shapes import answered, maybe, number, record, text, whole
from belljar.service.access import check_workspace
from belljar.service.quotas import Limits
from belljar.service.service import Service
from belljar.service.values import QuotaRecord

COUNTED = {
    "sandboxes": whole("Sandboxes, asleep ones included."),
    "memory_mb": whole("Memory of the sandboxes that are awake, in MiB."),
    "disk_mb": whole("Disks of all sandboxes as promised, and snapshots as they are, in MiB."),
}
RATE = {
    "rate_per_second": number("Requests per second, for long.", high=1e6),
    "rate_burst": whole("Requests at once.", low=1, high=10**6),
}
CHANGE = record({}, {**COUNTED, **RATE})
QUOTA = answered(
    {
        "workspace": text(),
        "limits": answered({**COUNTED, **RATE}),
        "own": answered({name: maybe(shape) for name, shape in {**COUNTED, **RATE}.items()}),
        "usage": answered(COUNTED),
    },
    name="Quota",
)
ABOUT = (
    "`limits` is what holds, and 0 in it is no limit. `own` is what was set for this workspace, null where the server's "
    "settings hold."
)


async def show(request: Request) -> Response:
    name = check_workspace(request.path_params["name"])
    if not caller_of(request).admin and name != caller_of(request).workspace:
        raise Forbidden("only an admin's token sees the quotas of other workspaces")
    return await _answer(service_of(request), name)


async def show_own(request: Request) -> Response:
    return await _answer(service_of(request), caller_of(request).workspace)


async def change(request: Request) -> Response:
    name, fields = check_workspace(request.path_params["name"]), await read_fields(request)
    if not caller_of(request).admin:
        raise Forbidden("only an admin's token changes quotas")
    record = QuotaRecord(
        sandboxes=fields.value("sandboxes"),
        memory_mib=fields.value("memory_mb"),
        disk_mib=fields.value("disk_mb"),
        rate_per_s=fields.value("rate_per_second"),
        rate_burst=fields.value("rate_burst"),
    )
    await service_of(request).parts.quotas.change(name, record)
    return await _answer(service_of(request), name)


async def _answer(service: Service, name: str) -> Response:
    quotas = service.parts.quotas
    usage = await quotas.usage(name)
    return answer(
        {
            "workspace": name,
            "limits": _render(quotas.limits(name)),
            "own": _render(quotas.own(name)),
            "usage": {"sandboxes": usage.sandboxes, "memory_mb": usage.memory_mib, "disk_mb": usage.disk_mib},
        }
    )


def _render(limits: Limits | QuotaRecord) -> dict[str, Any]:
    return {
        "sandboxes": limits.sandboxes,
        "memory_mb": limits.memory_mib,
        "disk_mb": limits.disk_mib,
        "rate_per_second": limits.rate_per_s,
        "rate_burst": limits.rate_burst,
    }


ROUTES = [
    call("GET", "/me/quota", show_own, "The quota of the caller's workspace", about=ABOUT, gives=QUOTA),
    call("GET", "/workspaces/{name}/quota", show, "The quota of a workspace", about=ABOUT, gives=QUOTA),
    call(
        "PUT",
        "/workspaces/{name}/quota",
        change,
        "Set the quota of a workspace",
        about="For admins. What is absent or null is what the server's settings say. What the workspace has already stays.",
        body=CHANGE,
        gives=QUOTA,
    ),
]
