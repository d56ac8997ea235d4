"""Tokens of the caller's workspace; an admin may also make them for others."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import Forbidden
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import caller_of, service_of
from belljar.service.access import MAX_DAYS
from belljar.service.values import TokenRecord


def render_token(record: TokenRecord) -> dict[str, Any]:
    return {
        "prefix": record.prefix,
        "label": record.label,
        "name": record.label,
        "workspace": record.workspace,
        "admin": record.admin,
        "created_at": timestamp(record.created_at),
        "expires_at": timestamp(record.expires_at),
    }


async def create(request: Request) -> Response:
    fields, caller = await read_fields(request), caller_of(request)
    label = fields.text("label") if "label" in fields else fields.text("name", "token")
    workspace, admin = fields.text("workspace", caller.workspace), fields.flag("admin")
    if not caller.admin and (workspace != caller.workspace or admin):
        raise Forbidden("only an admin's token makes admins, or tokens for other workspaces")
    days = fields.whole("expires_in_days", 1, MAX_DAYS) if "expires_in_days" in fields else None
    token, record = await service_of(request).access.mint(label, workspace=workspace, admin=admin, days=days)
    return answer({"token": token, **render_token(record)})


async def list_all(request: Request) -> Response:
    found = await service_of(request).access.list(caller_of(request).workspace)
    return answer({"items": [render_token(record) for record in found]})


async def revoke(request: Request) -> Response:
    caller = caller_of(request)
    await service_of(request).access.revoke(request.path_params["prefix"], None if caller.admin else caller.workspace)
    return nothing()


ROUTES = [
    Route("/me/tokens", create, methods=["POST"]),
    Route("/me/tokens", list_all),
    Route("/me/tokens/{prefix}", revoke, methods=["DELETE"]),
]
