"""Who the caller is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer
from belljar.server.auth import caller_of


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


ROUTES = [Route("/me", show)]
