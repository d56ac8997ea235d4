"""Forks, fork trees, and the child that is kept."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from belljar.server.answers import answer, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE, OF_A_SANDBOX
from belljar.server.pandastack.sandboxes import SANDBOX, render_sandbox
from belljar.server.patience import patiently
from belljar.server.shapes import TIME, answered, flag, labels, listing, record, text, whole
from belljar.service import forking

CHILD_LABELS = labels("Labels of the child, besides those that it inherits.")
FORK = record({}, {"metadata": CHILD_LABELS})
TREE = record(
    {"count": whole("How many children, all of one instant.", low=1, high=forking.MAX_CHILDREN)}, {"metadata": CHILD_LABELS}
)
PROMOTE = record(
    {}, {"tree_id": text("Known from the child when it is left out."), "cleanup_siblings": flag("End the others.", default=False)}
)
FORKED = answered({"sandbox": SANDBOX, "children": listing(text("Its id.")), "parent_id": text(), "at": TIME})
FORKS = answered({"tree_id": text(), "parent_id": text(), "children": listing(SANDBOX), "at": TIME})
PROMOTED = answered(
    {
        "winner": text(),
        "tree_id": text(),
        "deleted": listing(text("Ids of siblings that were ended.")),
        "failures": labels("Siblings that could not be ended, and why."),
    }
)


async def fork(request: Request) -> Response:
    fields = await read_fields(request)
    parent = request.path_params["id"]
    child = await patiently(request, forking.fork(workspace_of(request), parent, fields.labels("metadata")))
    whole = render_sandbox(child)
    return answer({"sandbox": whole, "children": [child.id], "parent_id": parent, "at": timestamp(time.time())}, 201)


async def fork_tree(request: Request) -> Response:
    fields = await read_fields(request)
    parent, count = request.path_params["id"], fields.whole("count")
    work = forking.fork_tree(workspace_of(request), parent, count, fields.labels("metadata"))
    tree_id, children = await patiently(request, work)
    whole = [render_sandbox(child) for child in children]
    return answer({"tree_id": tree_id, "parent_id": parent, "children": whole, "at": timestamp(time.time())}, 201)


async def promote(request: Request) -> Response:
    fields = await read_fields(request)
    work = forking.promote(
        workspace_of(request),
        request.path_params["id"],
        tree_id=fields.optional_text("tree_id"),
        cleanup=fields.flag("cleanup_siblings"),
    )
    done = await patiently(request, work)
    return answer({"winner": done.winner, "tree_id": done.tree_id, "deleted": done.deleted, "failures": done.failures})


ROUTES = [
    call("POST", "/sandboxes/{id}/fork", fork, "Fork a sandbox", body=FORK, gives=FORKED, status=201, errors=OF_A_MACHINE),
    call(
        "POST",
        "/sandboxes/{id}/fork-tree",
        fork_tree,
        "Fork it several times",
        body=TREE,
        gives=FORKS,
        status=201,
        errors=OF_A_MACHINE,
    ),
    call("POST", "/sandboxes/{id}/promote", promote, "Keep one child of a tree", body=PROMOTE, gives=PROMOTED, errors=OF_A_SANDBOX),
]
