"""Tokens: what is kept of them, and how long they are good."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from belljar.errors import InvalidInput, NotFound, Unauthorized
from belljar.service.access import Access
from belljar.store.database import Database
from belljar.store.tokens import Tokens


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(Tokens(Database(tmp_path / "belljar.db")))


async def test_the_token_itself_is_nowhere_on_disk(access: Access, tmp_path: Path) -> None:
    token, record = await access.mint("ci", workspace="w")
    assert (await access.check(token)).workspace == "w"
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert record.prefix.encode() in kept and token.encode() not in kept


async def test_a_token_ends_with_its_days(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = await access.mint("ci", days=1)
    await access.check(token)
    later = time.time() + 86401
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(Unauthorized):
        await access.check(token)


BAD = ["", "pds_", "pds_" + "0" * 32, "pds_" + "G" * 32, "x" * 100_000, "\ud800", "pds_" + "0" * 31 + "\n"]


@pytest.mark.parametrize("token", BAD)
async def test_anything_else_is_not_valid(access: Access, token: str) -> None:
    with pytest.raises(Unauthorized):
        await access.check(token)


async def test_bad_wishes_make_no_token(access: Access) -> None:
    for wish in ({"label": ""}, {"label": "x" * 201}, {"label": "x", "workspace": "a/b"}, {"label": "x", "days": 0}):
        with pytest.raises(InvalidInput):
            await access.mint(**wish)  # type: ignore[arg-type]
    assert await access.list(None) == []
    with pytest.raises(NotFound):
        await access.revoke("pds_00000000", None)


async def test_of_open_connections_only_those_with_a_good_token_stay(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(await access.mint(label, days=days))[1] for label, days in (("ever", None), ("a day", 1), ("revoked", None))]
    await access.revoke(records[2].prefix, None)
    prefixes = {record.prefix for record in records}
    assert await access.still_good(prefixes) == {records[0].prefix, records[1].prefix}
    later = time.time() + 86401
    monkeypatch.setattr(time, "time", lambda: later)
    assert await access.still_good(prefixes) == {records[0].prefix}
