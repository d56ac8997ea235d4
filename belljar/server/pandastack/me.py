"""Who the caller is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import answer
from belljar.server.auth import caller_of
from belljar.server.declaring import call
from belljar.server.shapes import answered, choice, flag, listing, text

ME = answered(
    {
        "user_id": text(),
        "email": {"type": "null"},
        "current_org": text(),
        "orgs": listing(text()),
        "auth_method": choice(["token", "local"]),
        "workspace": text(),
        "admin": flag(),
        "label": text(empty=True),
    }
)


async def show(request: Request) -> Response:
    caller = caller_of(request)
    return answer(
        {
            "user_id": caller.token or "local",
            "email": None,
            "current_org": caller.workspace,
            "orgs": [caller.workspace],
            "auth_method": "token" if caller.token else "local",
            "workspace": caller.workspace,
            "admin": caller.admin,
            "label": caller.label,
        }
    )


ROUTES = [call("GET", "/me", show, "Who the caller is", gives=ME)]
