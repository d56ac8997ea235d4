"""Watching folders through the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from belljar.errors import FileMissing
from belljar.vm.link import Channel, Message
from tests.guest.conftest import DEADLINE_S, Guest


@asynccontextmanager
async def watching(guest: Guest, path: str, recursive: bool = False) -> AsyncIterator[Channel]:
    async with await guest.link.open("file.watch", {"path": path, "recursive": recursive}) as channel:
        first = await channel.receive()
        assert first == Message({"watching": True})
        yield channel


async def events_until(channel: Channel, kind: str, suffix: str) -> list[dict[str, Any]]:
    seen = []
    async with asyncio.timeout(DEADLINE_S):
        while True:
            item = await channel.receive()
            assert isinstance(item, Message)
            seen.append(item.body["event"])
            if seen[-1]["type"] == kind and seen[-1]["path"].endswith(suffix):
                return seen


async def test_create_modify_move_and_remove_are_reported(guest: Guest) -> None:
    async with watching(guest, ".") as channel:
        target = guest.home / "x"
        target.write_text("1")
        await events_until(channel, "created", "/x")
        await events_until(channel, "modified", "/x")
        target.rename(guest.home / "y")
        moved = (await events_until(channel, "moved", "/y"))[-1]
        assert moved["from"].endswith("/x")
        (guest.home / "y").unlink()
        await events_until(channel, "removed", "/y")


async def test_new_folders_are_watched_too(guest: Guest) -> None:
    async with watching(guest, ".", recursive=True) as channel:
        (guest.home / "a/b/c").mkdir(parents=True)
        await events_until(channel, "created", "/a/b/c")
        (guest.home / "a/b/c/file").touch()
        await events_until(channel, "created", "/a/b/c/file")
        (guest.home / "a/b").rename(guest.home / "a/z")
        await events_until(channel, "moved", "/a/z")
        (guest.home / "a/z/c/again").touch()
        await events_until(channel, "created", "/a/z/c/again")


async def test_missing_folder_is_not_found(guest: Guest) -> None:
    channel = await guest.link.open("file.watch", {"path": "missing"})
    with pytest.raises(FileMissing):
        await channel.receive()


async def test_host_that_does_not_read_is_told_of_an_overflow_or_gets_everything(guest: Guest) -> None:
    async with watching(guest, ".") as channel:
        await guest.run("for i in $(seq 1 30000); do : > f$i; done; touch last")
        seen = []
        async with asyncio.timeout(DEADLINE_S):
            while True:
                item = await channel.receive()
                assert isinstance(item, Message)
                seen.append(item.body["event"]["type"])
                if item.body["event"]["path"].endswith("/last") or seen[-1] == "overflow":
                    break
    assert "overflow" in seen or seen.count("created") == 30001


async def test_leaving_releases_the_watch(guest: Guest) -> None:
    for _ in range(200):
        async with watching(guest, "."):
            pass
    (guest.home / "x").touch()
    assert (await guest.run("ls -l /proc/$PPID/fd | grep -c inotify")).stdout.strip() in (b"0", b"1")
