"""Snapshots: taken of a sandbox, and kept beyond it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import Conflict, SnapshotNotFound
from belljar.server.answers import answer, nothing, timestamp
from belljar.server.asking import query_of, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_MACHINE
from belljar.server.paging import HEADERS, PARAMETERS, cut, labels_of, page_of
from belljar.server.patience import patiently
from belljar.server.shapes import TIME, answered, labels, listing, record, text, whole
from belljar.service.values import SnapshotRecord

PLACES = {"id": text("Id of a snapshot.")}
CREATE = record({}, {"metadata": labels("Labels of the snapshot.")})
FILTER = record({}, {"sandbox_id": text("Only those of this sandbox."), **PARAMETERS})
FILTERING = "`metadata.<name>=<value>`, as often as wanted: only those that carry it."
SNAPSHOT = answered(
    {
        "id": text(),
        "sandbox_id": text(),
        "template": text(),
        "size_bytes": whole(),
        "created_at": TIME,
        "workspace": text(),
        "metadata": labels(),
    },
    name="Snapshot",
)
LISTED = answered({"snapshots": listing(SNAPSHOT)})


def render_snapshot(record: SnapshotRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "sandbox_id": record.sandbox_id,
        "template": record.template,
        "size_bytes": record.size_bytes,
        "created_at": timestamp(record.created_at),
        "workspace": record.workspace,
        "metadata": dict(record.metadata),
    }


async def create(request: Request) -> Response:
    fields = await read_fields(request)
    work = workspace_of(request).snapshot(request.path_params["id"], fields.labels("metadata"))
    return answer(render_snapshot(await patiently(request, work)), 201)


async def list_all(request: Request) -> Response:
    """Newest first."""
    page, wanted = page_of(request, newest_first=True), query_of(request).get("sandbox_id") or None
    records = await workspace_of(request).snapshots(labels_of(request), sandbox_id=wanted, page=page)
    found, headers = cut(records, page)
    return answer({"snapshots": [render_snapshot(record) for record in found]}, headers=headers)


async def get(request: Request) -> Response:
    return answer(render_snapshot(await workspace_of(request).get_snapshot(request.path_params["id"])))


async def delete(request: Request) -> Response:
    await workspace_of(request).remove_snapshot(request.path_params["id"])
    return nothing()


ROUTES = [
    call(
        "POST", "/sandboxes/{id}/snapshots", create, "Take a snapshot", body=CREATE, gives=SNAPSHOT, status=201, errors=OF_A_MACHINE
    ),
    call(
        "GET",
        "/snapshots",
        list_all,
        "List the snapshots, newest first",
        about=FILTERING,
        query=FILTER,
        gives=LISTED,
        headers=HEADERS,
    ),
    call("GET", "/snapshots/{id}", get, "Look at a snapshot", gives=SNAPSHOT, places=PLACES, errors=(SnapshotNotFound,)),
    call("DELETE", "/snapshots/{id}", delete, "Remove a snapshot", places=PLACES, errors=(SnapshotNotFound, Conflict)),
]
