"""What a sandbox may connect to, what it did, and the secrets that the host adds to its requests."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.errors import InvalidInput
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import Fields, query_text, read_fields
from belljar.server.auth import workspace_of
from belljar.service.egress import EgressView, change_policy, remove_secret, set_secret, show_egress

POLICY_FIELDS = ("mode", "allow", "deny", "limits")


def render_egress(view: EgressView) -> dict[str, Any]:
    """Limits are those in force; connections are the newest first."""
    return {
        **view.policy.to_json(),
        "limits": vars(view.limits),
        "secrets": view.secrets,
        "counters": vars(view.counters),
        "connections": [{**line.to_json(), "at": timestamp(line.at)} for line in reversed(view.connections)],
    }


def parse_create(fields: Fields) -> dict[str, Any]:
    """The part of a create that is about the network."""
    if "egress" in fields and "egress_allowlist" in fields:
        raise InvalidInput("give egress or egress_allowlist, not both")
    wishes: dict[str, Any] = {}
    if "egress_allowlist" in fields:
        wishes["egress"] = fields.texts("egress_allowlist")
    elif "egress" in fields:
        wishes["egress"] = fields.any("egress")
    if "egress_secrets" in fields:
        wishes["egress_secrets"] = fields.any("egress_secrets")
    return wishes


async def show(request: Request) -> Response:
    return answer(render_egress(await show_egress(workspace_of(request), request.path_params["id"])))


async def change(request: Request) -> Response:
    fields = await read_fields(request)
    changes = fields.only(*POLICY_FIELDS)
    if not changes:
        raise InvalidInput(f"one of {', '.join(POLICY_FIELDS)} required")
    await change_policy(workspace_of(request), request.path_params["id"], changes)
    return await show(request)


async def put_secret(request: Request) -> Response:
    fields = await read_fields(request)
    secret = (fields.text("host"), fields.text("header"), fields.text("value"))
    await set_secret(workspace_of(request), request.path_params["id"], *secret)
    return nothing()


async def delete_secret(request: Request) -> Response:
    place = (query_text(request, "host"), query_text(request, "header"))
    await remove_secret(workspace_of(request), request.path_params["id"], *place)
    return nothing()


ROUTES = [
    Route("/sandboxes/{id}/egress", show),
    Route("/sandboxes/{id}/egress", change, methods=["PATCH"]),
    Route("/sandboxes/{id}/egress/secrets", put_secret, methods=["PUT"]),
    Route("/sandboxes/{id}/egress/secrets", delete_secret, methods=["DELETE"]),
]
