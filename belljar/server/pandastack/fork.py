"""Forks, fork trees, and the child that is kept."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from belljar.server.answers import answer, timestamp
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.pandastack.sandboxes import render_sandbox
from belljar.server.patience import patiently
from belljar.service import forking


async def fork(request: Request) -> Response:
    fields = await read_fields(request)
    parent = request.path_params["id"]
    child = await patiently(request, forking.fork(workspace_of(request), parent, fields.labels("metadata")))
    whole = render_sandbox(child)
    return answer({"sandbox": whole, "children": [child.id], "parent_id": parent, "at": timestamp(time.time())}, 201)


async def fork_tree(request: Request) -> Response:
    fields = await read_fields(request)
    parent, count = request.path_params["id"], fields.whole("count", 1, forking.MAX_CHILDREN)
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
    Route("/sandboxes/{id}/fork", fork, methods=["POST"]),
    Route("/sandboxes/{id}/fork-tree", fork_tree, methods=["POST"]),
    Route("/sandboxes/{id}/promote", promote, methods=["POST"]),
]
