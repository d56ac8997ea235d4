"""Requests that are being answered, and an end for those whose token is no longer good.

A token is checked when a request comes. Streams, terminals and long commands outlive that moment, and must not outlive the token:
whoever revokes one that leaked wants its thief out, not only kept from coming back.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Scope

from belljar.errors import BelljarError
from belljar.server.protocol import HANG_UP
from belljar.service.access import Access

log = logging.getLogger(__name__)

EVERY_S = 2.0


class Underway:
    """What is open now."""

    def __init__(self) -> None:
        self._scopes: dict[int, Scope] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    def add(self, scope: Scope) -> None:
        self._scopes[id(scope)] = scope

    def discard(self, scope: Scope) -> None:
        self._scopes.pop(id(scope), None)
        self._seen.discard(id(scope))

    async def watch(self, access: Access) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.cut_off(access)
            except BelljarError as problem:
                log.warning("tokens of open connections could not be checked: %s", problem.message)

    async def cut_off(self, access: Access) -> None:
        """Hang up on those that were there the last time too: one that revokes its own token still gets its answer."""
        tokens = {number: token for number, scope in self._scopes.items() if (token := _token(scope)) is not None}
        stayed = {number: token for number, token in tokens.items() if number in self._seen}
        self._seen = set(tokens)
        good = await access.still_good(set(stayed.values())) if stayed else set()
        for number, token in stayed.items():
            scope = self._scopes.get(number)
            if token not in good and scope is not None:
                log.info("a connection was cut off: its token was revoked, or has expired", extra={"fields": {"token": token}})
                scope["extensions"][HANG_UP]()


def _token(scope: Scope) -> str | None:
    caller = scope.get("caller")
    return caller.token if caller is not None and HANG_UP in scope.get("extensions", {}) else None
