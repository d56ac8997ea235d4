"""Tokens: made, checked, listed, revoked. Only their hash is kept, so a token can be shown once and never again."""

from __future__ import annotations

import asyncio
import builtins
import hashlib
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass

from belljar.errors import InvalidInput, NotFound, Unauthorized
from belljar.store.tokens import TokenRecord, Tokens

SHAPE = re.compile(r"pds_[0-9a-f]{32}", re.ASCII)
PREFIX_CHARS = len("pds_") + 8
WORKSPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
MAX_LABEL_CHARS = 200
MAX_DAYS = 3650


@dataclass(frozen=True)
class Caller:
    """Who is calling. `token` is the prefix of the token; None for local use without one."""

    workspace: str
    admin: bool
    token: str | None = None
    label: str = ""


class Access:
    """The tokens of one home."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def mint(
        self, label: str, *, workspace: str = "default", admin: bool = False, days: int | None = None
    ) -> tuple[str, TokenRecord]:
        """A new token and what is remembered of it. The token itself is nowhere but in the answer."""
        if not isinstance(label, str) or not 0 < len(label) <= MAX_LABEL_CHARS:
            raise InvalidInput(f"label must be text of 1 to {MAX_LABEL_CHARS} characters")
        check_workspace(workspace)
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise InvalidInput(f"expires_in_days must be from 1 to {MAX_DAYS}")
        token, now = f"pds_{secrets.token_hex(16)}", time.time()
        expires_at = None if days is None else now + days * 86400
        record = TokenRecord(_digest(token), token[:PREFIX_CHARS], label, workspace, admin, now, expires_at)
        return token, await asyncio.to_thread(self._tokens.insert, record)

    async def check(self, token: str) -> Caller:
        """Who the token belongs to. Malformed, unknown, revoked and expired ones are all told the same."""
        record = await asyncio.to_thread(self._tokens.find, _digest(token)) if SHAPE.fullmatch(token) else None
        if record is None or (record.expires_at is not None and record.expires_at <= time.time()):
            raise Unauthorized("the token is not valid: it is unknown, revoked or expired")
        return Caller(record.workspace, record.admin, record.prefix, record.label)

    async def still_good(self, prefixes: Collection[str]) -> set[str]:
        """Those of the prefixes whose tokens are neither revoked nor expired."""
        return await asyncio.to_thread(self._tokens.good, prefixes, time.time())

    async def list(self, workspace: str | None) -> builtins.list[TokenRecord]:
        return await asyncio.to_thread(self._tokens.list, workspace)

    async def revoke(self, prefix: str, workspace: str | None) -> None:
        if not await asyncio.to_thread(self._tokens.delete, prefix, workspace):
            raise NotFound(f"no token begins with {prefix[:80]!r}")


def check_workspace(name: object) -> str:
    if not isinstance(name, str) or not WORKSPACE.fullmatch(name):
        raise InvalidInput("a workspace's name has letters, digits, '.', '_' and '-', at most 64 of them, first a letter or digit")
    return name


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
