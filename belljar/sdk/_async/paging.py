"""Lists too long for one answer: the server gives a page, and says where the next one begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.sdk._async.adaptors import Flow
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk.requests import Call, decode

NEXT = "X-Next-Cursor"


async def pages(transport: AsyncTransport, path: str, params: Mapping[str, Any], page_size: int) -> Flow[Any]:
    cursor: str | None = None
    while True:
        response = await transport.send("GET", path, params={**params, "limit": page_size, "cursor": cursor})
        yield decode(response.status_code, response.content, Call("GET", path), transport.place)
        cursor = response.headers.get(NEXT)
        if not cursor:
            return
