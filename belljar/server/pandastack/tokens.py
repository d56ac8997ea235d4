"""Tokens of the caller's workspace; an admin may also make them for others."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import Forbidden, NotFound
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import caller_of, service_of
from belljar.server.declaring import call
from belljar.server.shapes import TIME, answered, flag, listing, maybe, record, text, whole
from belljar.service.access import MAX_DAYS, MAX_LABEL_CHARS, WORKSPACE
from belljar.service.values import TokenRecord

ADMINS = "An admin's token also makes admins and tokens of other workspaces, and revokes them."
LABEL = text("What the token is for.", most=MAX_LABEL_CHARS, examples=["ci"])
CREATE = record(
    {},
    {
        "label": LABEL,
        "name": text("The same as `label`.", most=MAX_LABEL_CHARS),
        "expires_in_days": whole("Valid for ever when it is left out.", low=1, high=MAX_DAYS),
        "workspace": text("The caller's own when it is left out.", pattern=f"^{WORKSPACE.pattern}$"),
        "admin": flag(default=False),
    },
)
FIELDS = {
    "prefix": text("Its public beginning."),
    "label": text(),
    "name": text(),
    "workspace": text(),
    "admin": flag(),
    "created_at": TIME,
    "expires_at": maybe(TIME),
}
TOKEN = answered(FIELDS, name="Token")
MADE = answered({"token": text("Shown only this once."), **FIELDS})


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
    days = fields.value("expires_in_days")
    token, record = await service_of(request).access.mint(label, workspace=workspace, admin=admin, days=days)
    return answer({"token": token, **render_token(record)}, headers={"Cache-Control": "no-store"})


async def list_all(request: Request) -> Response:
    found = await service_of(request).access.list(caller_of(request).workspace)
    return answer({"items": [render_token(record) for record in found]})


async def revoke(request: Request) -> Response:
    caller = caller_of(request)
    await service_of(request).access.revoke(request.path_params["prefix"], None if caller.admin else caller.workspace)
    return nothing()


ROUTES = [
    call("POST", "/me/tokens", create, "Make a token", about=ADMINS, body=CREATE, gives=MADE),
    call("GET", "/me/tokens", list_all, "List the workspace's tokens", gives=answered({"items": listing(TOKEN)})),
    call("DELETE", "/me/tokens/{prefix}", revoke, "Revoke a token", about=ADMINS, errors=(NotFound,)),
]
