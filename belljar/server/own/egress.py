"""What a sandbox may connect to, what it did, and the secrets that the host adds to its requests."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import InvalidInput, NotFound
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import Fields, query_text, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE, OF_A_SANDBOX
from belljar.server.shapes import TIME, Shape, answered, choice, either, flag, listing, maybe, number, record, text, whole
from belljar.service.egress import EgressView, change_policy, remove_secret, set_secret, show_egress
from belljar.service.values import MAX_EGRESS_CONNECTIONS, MAX_SECRET_CHARS

MODES = ["off", "allow-list", "open"]
RULES = listing(text(most=300, examples=["pypi.org", "*.pythonhosted.org", "10.1.2.0/24:5432"]), most=1000)
FREE = "0 is no limit of its own."
LIMITS = record(
    {}, {"connections": whole(FREE, high=MAX_EGRESS_CONNECTIONS), "bytes_per_second": whole(FREE), "bytes": whole(FREE)}
)
POLICY: dict[str, Shape] = {"mode": choice(MODES), "allow": RULES, "deny": RULES, "limits": LIMITS}
SECRET_PLACE = {"host": text("A host, or host:port.", most=300), "header": text(most=200)}
SECRET = record({**SECRET_PLACE, "value": text("Never shown again.", most=MAX_SECRET_CHARS)})

# The part of a create that is about the network.
EGRESS_FIELDS: dict[str, Shape] = {
    "egress": either(choice(MODES), record({}, POLICY), about="What it may connect to: a mode, or a whole policy."),
    "egress_allowlist": listing(text(most=300), "All that it may connect to; an empty list is nothing.", most=1000),
    "egress_secrets": listing(SECRET, "Headers that the host adds to requests for a host.", most=64),
}
COUNT = whole()
EGRESS = answered(
    {
        "mode": choice(MODES),
        "allow": listing(text()),
        "deny": listing(text()),
        "limits": answered({"connections": COUNT, "bytes_per_second": COUNT, "bytes": COUNT}),
        "secrets": listing(answered({"host": text(), "header": text()})),
        "counters": answered(
            dict.fromkeys(("allowed", "refused", "failed", "resolved", "open", "bytes_in", "bytes_out"), COUNT),
        ),
        "connections": listing(
            answered(
                {
                    "kind": choice(["connect", "resolve"]),
                    "at": TIME,
                    "name": maybe(text(empty=True)),
                    "address": maybe(text(empty=True)),
                    "port": maybe(whole()),
                    "verdict": text(),
                    "reason": text(empty=True),
                    "rule": maybe(text(empty=True)),
                    "bytes_in": COUNT,
                    "bytes_out": COUNT,
                    "duration_seconds": maybe(number()),
                    "open": flag(),
                }
            ),
            "The newest first.",
        ),
    },
    name="Egress",
)


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
        wishes["egress"] = fields.value("egress")
    if "egress_secrets" in fields:
        wishes["egress_secrets"] = fields.value("egress_secrets")
    return wishes


async def show(request: Request) -> Response:
    return answer(render_egress(await show_egress(workspace_of(request), request.path_params["id"])))


async def change(request: Request) -> Response:
    fields = await read_fields(request)
    changes = {name: fields.value(name) for name in POLICY if name in fields}
    if not changes:
        raise InvalidInput(f"one of {', '.join(POLICY)} required")
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
    call("GET", "/sandboxes/{id}/egress", show, "What it may connect to, and what it did", gives=EGRESS, errors=OF_A_SANDBOX),
    call(
        "PATCH",
        "/sandboxes/{id}/egress",
        change,
        "Change what a sandbox may connect to",
        about="What is not named stays. Open connections that are no longer allowed are cut.",
        body=record({}, POLICY),
        gives=EGRESS,
        errors=OF_A_SANDBOX,
    ),
    call("PUT", "/sandboxes/{id}/egress/secrets", put_secret, "Set a secret header", body=SECRET, errors=OF_A_MACHINE),
    call(
        "DELETE",
        "/sandboxes/{id}/egress/secrets",
        delete_secret,
        "Remove a secret header",
        query=record(SECRET_PLACE),
        errors=(*OF_A_MACHINE, NotFound),
    ),
]
