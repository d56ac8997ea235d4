"""Long lists, a page at a time: `limit` and `cursor` in the query, and `X-Next-Cursor` in the answer when there is more."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from starlette.requests import Request

from belljar.errors import InvalidInput
from belljar.server.asking import query_of, query_whole
from belljar.server.shapes import Shape, text, whole
from belljar.service.values import Page, Place, SandboxRecord, SnapshotRecord

Record = TypeVar("Record", SandboxRecord, SnapshotRecord)

MAX_LIMIT = 1000
HEADER = "X-Next-Cursor"
PARAMETERS: dict[str, Shape] = {
    "limit": whole("At most so many; all by default.", 1, MAX_LIMIT),
    "cursor": text("Where to go on: what the last page's `X-Next-Cursor` said.", most=1000),
}
HEADERS = {HEADER: "The cursor of the next page; absent on the last one, and without `limit`."}
LABEL = "metadata."


def labels_of(request: Request) -> dict[str, str]:
    """`metadata.<name>=<value>` in the query: only what carries all of them is wanted."""
    return {name.removeprefix(LABEL): value for name, value in query_of(request).items() if name.startswith(LABEL)}


def page_of(request: Request, *, newest_first: bool = False) -> Page:
    """The page that is asked for, and one record more, which tells whether there is another."""
    given = query_of(request)
    limit = query_whole(request, "limit", 0)
    cursor = given.get("cursor")
    return Page(limit + 1 if limit else None, _parse(cursor) if cursor else None, newest_first)


def cut(records: Sequence[Record], page: Page) -> tuple[Sequence[Record], Mapping[str, str]]:
    """The page's own records, and the header that leads to the next."""
    if page.limit is None or len(records) < page.limit:
        return records, {}
    kept = records[: page.limit - 1]
    return kept, {HEADER: _render(Place(kept[-1].created_at, kept[-1].id))}


def _render(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps([place.created_at, place.id]).encode()).decode().rstrip("=")


def _parse(cursor: str) -> Place:
    try:
        created_at, name = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, TypeError, RecursionError):
        created_at = name = None
    if isinstance(created_at, float) and math.isfinite(created_at) and isinstance(name, str):
        return Place(created_at, name)
    raise InvalidInput("cursor must be what X-Next-Cursor said")
