"""Files against a real agent on the host for what they do, and against a scripted one for what a hostile guest may try."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import (
    AgentProtocol,
    AlreadyExists,
    DiskFull,
    FileMissing,
    HostDiskShort,
    InvalidInput,
    IsADirectory,
    NotADirectory,
)
from belljar.fleet import transfer
from belljar.fleet.files import FileEvent, Files
from tests.calling_off import Gate
from tests.fleet.scripted_guest import GuestChannel, Script, ScriptedGuest, answers
from tests.guest.conftest import Guest

BINARY = bytes(range(256)) * 8192

# -- refused before anything is sent


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 4097, "ü" * 2049, None, 7, b"/x", "\ud800"])
async def test_malformed_paths_are_refused_unsent(files: Files, guest: ScriptedGuest, tmp_path: Path, path: Any) -> None:
    calls = [
        files.read(path),
        files.write(path, b""),
        files.list(path),
        files.stat(path),
        files.exists(path),
        files.mkdir(path),
        files.move(path, "/a"),
        files.move("/a", path),
        files.copy("/a", path),
        files.remove(path),
        files.upload(tmp_path, path),
        files.download(path, tmp_path / "x"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            await call
    with pytest.raises(InvalidInput):
        files.watch(path)
    assert guest.requests == []


async def test_malformed_arguments_are_refused_unsent(files: Files, guest: ScriptedGuest) -> None:
    calls = [
        files.write("/a", 5),  # type: ignore[arg-type]
        files.write("/a", b"", mode=0o10000),
        files.write("/a", b"", mode="755"),  # type: ignore[arg-type]
        files.read("/a", max_bytes=-1),
        files.read("/a", user=""),
        files.list("/a", depth=0),
        files.list("/a", depth=10**9),
        files.stat("/a", user="a\0b"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            await call
    with pytest.raises(InvalidInput):
        await anext(files.read_stream("/a", offset=-1))
    assert guest.requests == []


# -- with a real agent


async def test_what_is_written_is_read_back_and_parents_are_made(real_files: Files, agent: Guest) -> None:
    path = f"{agent.home}/new/folder/data.bin"
    assert await real_files.write(path, BINARY, mode=0o600) == len(BINARY)
    assert await real_files.read(path) == BINARY
    entry = await real_files.stat(path)
    assert (entry.name, entry.type, entry.size, entry.mode & 0o777) == ("data.bin", "file", len(BINARY), 0o600)


async def test_every_kind_of_content_can_be_written(real_files: Files, agent: Guest) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for piece in (b"a", b"", b"b" * 300_000):
            await asyncio.sleep(0)
            yield piece

    def at_once() -> Iterator[bytes]:
        yield b"x"
        yield b"y"

    path = f"{agent.home}/f"
    for content, wanted in (
        ("ü", "ü".encode()),
        (b"", b""),
        (memoryview(b"mem"), b"mem"),
        (slowly(), b"a" + b"b" * 300_000),
        (at_once(), b"xy"),
    ):
        await real_files.write(path, content)
        assert await real_files.read(path) == wanted
    await real_files.write(path, "z", append=True)
    assert await real_files.read(path) == b"xyz"


async def test_content_that_fails_half_way_leaves_the_old_file(real_files: Files, agent: Guest) -> None:
    def broken() -> Iterator[Any]:
        yield b"new"
        yield "not bytes"

    path = f"{agent.home}/f"
    await real_files.write(path, "old")
    with pytest.raises(InvalidInput):
        await real_files.write(path, broken())
    assert await real_files.read(path) == b"old"
    assert [entry.name for entry in await real_files.list(str(agent.home))] == ["f"]


async def test_parts_of_a_file_can_be_read(real_files: Files, agent: Guest) -> None:
    path = f"{agent.home}/f"
    await real_files.write(path, BINARY)
    pieces = [piece async for piece in real_files.read_stream(path, offset=1000, length=500_000)]
    assert b"".join(pieces) == BINARY[1000:501_000]
    assert [piece async for piece in real_files.read_stream(path, offset=len(BINARY) + 5)] == []


async def test_a_file_that_is_too_large_to_hold_is_refused_with_advice(real_files: Files, agent: Guest) -> None:
    path = f"{agent.home}/f"
    await real_files.write(path, BINARY)
    assert await real_files.read(path, max_bytes=len(BINARY)) == BINARY
    with pytest.raises(InvalidInput, match="read_stream"):
        await real_files.read(path, max_bytes=len(BINARY) - 1)


async def test_errors_of_the_guest_are_typed(real_files: Files, agent: Guest) -> None:
    with pytest.raises(FileMissing):
        await real_files.read(f"{agent.home}/missing")
    with pytest.raises(IsADirectory):
        await real_files.read(str(agent.home))
    with pytest.raises(IsADirectory):
        await real_files.write(str(agent.home), b"x")
    await real_files.write(f"{agent.home}/f", b"x")
    with pytest.raises(NotADirectory):
        await real_files.list(f"{agent.home}/f")
    with pytest.raises(InvalidInput):
        await real_files.read(f"{agent.home}/f", user="nosuchuser")
    assert not await real_files.exists(f"{agent.home}/f/below")
    assert not await real_files.exists(f"{agent.home}/missing")
    assert await real_files.exists(f"{agent.home}/f")


async def test_folders_can_be_made_listed_copied_moved_and_removed(real_files: Files, agent: Guest) -> None:
    home = str(agent.home)
    await real_files.mkdir(f"{home}/a/b")
    await real_files.write(f"{home}/a/b/f", b"1")
    (agent.home / "a" / "link").symlink_to("/etc/passwd")
    await real_files.copy(f"{home}/a", f"{home}/c", recursive=True)
    await real_files.move(f"{home}/a", f"{home}/d")
    found = {entry.path: entry.type for entry in await real_files.list(home, depth=3)}
    wanted = {"c": "dir", "c/b": "dir", "c/b/f": "file", "c/link": "symlink"}
    assert found == {f"{home}/{p}": t for p, t in {**wanted, **{"d" + p[1:]: t for p, t in wanted.items()}}.items()}
    await real_files.remove(f"{home}/c", recursive=True)
    assert [entry.name for entry in await real_files.list(home)] == ["d"]


async def test_a_watch_tells_what_happens_from_when_it_is_entered(real_files: Files, agent: Guest) -> None:
    async with real_files.watch(str(agent.home)) as watch:
        await real_files.mkdir(f"{agent.home}/new")
        async for event in watch:
            assert event == FileEvent("created", f"{agent.home}/new")
            break


async def test_a_tree_survives_the_way_up_and_down(real_files: Files, agent: Guest, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "deep" / "data").write_bytes(BINARY)
    (source / "deep" / "ünï \n code").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(source) + b"/\xff\xfe")).write_bytes(b"not UTF-8")
    (source / "outside").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    up = await real_files.upload(source, f"{agent.home}/copy")
    assert (up.files, up.bytes) == (4, len(BINARY) + 19)
    assert sorted((s.path.removeprefix(str(source)), s.reason) for s in up.skipped) == [
        ("/outside", "symlink"),
        ("/pipe", "neither file nor folder"),
    ]
    (agent.home / "copy" / "link").symlink_to("/etc")
    down = await real_files.download(f"{agent.home}/copy", back)
    assert (down.files, down.bytes) == (4, len(BINARY) + 19)
    assert [s.reason for s in down.skipped] == ["symlink"]
    assert (back / "deep" / "data").read_bytes() == BINARY
    assert Path(os.fsdecode(os.fsencode(back) + b"/\xff\xfe")).read_bytes() == b"not UTF-8"
    assert (back / "deep" / "empty").is_dir()
    assert os.access(back / "run.sh", os.X_OK)
    assert not (back / "link").is_symlink()
    names = sorted(path.name for path in back.rglob("*"))
    assert len(names) == 6, names


async def test_a_link_that_the_caller_names_is_followed(real_files: Files, agent: Guest, tmp_path: Path) -> None:
    await real_files.write(f"{agent.home}/real/f", b"1")
    (agent.home / "to-folder").symlink_to("real")
    (agent.home / "to-file").symlink_to("real/f")
    await real_files.download(f"{agent.home}/to-folder", tmp_path / "folder")
    await real_files.download(f"{agent.home}/to-file", tmp_path / "file")
    assert (tmp_path / "folder" / "f").read_bytes() == (tmp_path / "file").read_bytes() == b"1"


async def test_a_download_that_fails_leaves_nothing_behind(real_files: Files, agent: Guest, tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.mkdir()
    (target / "f").write_bytes(b"old")
    await real_files.write(f"{agent.home}/f", BINARY)
    with pytest.raises(InvalidInput, match="max_bytes"):
        await real_files.download(f"{agent.home}/f", target / "f", max_bytes=1000)
    with pytest.raises(FileMissing):
        await real_files.download(f"{agent.home}/missing", target / "g")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"f": b"old"}


async def test_local_troubles_are_told_apart_from_the_guests(real_files: Files, agent: Guest, tmp_path: Path) -> None:
    await real_files.write(f"{agent.home}/f", b"x")
    with pytest.raises(InvalidInput, match="this host"):
        await real_files.upload(tmp_path / "missing", f"{agent.home}/g")
    with pytest.raises(InvalidInput, match="this host"):
        await real_files.download(f"{agent.home}/f", tmp_path / "missing" / "f")
    with pytest.raises(AlreadyExists, match="this host"):
        await real_files.download(f"{agent.home}/f", agent.home)
    with pytest.raises(InvalidInput):
        await real_files.download(f"{agent.home}/f", Path("a\0b"))


async def test_a_full_host_disk_is_the_hosts_error(
    real_files: Files, agent: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    await real_files.write(f"{agent.home}/f", b"x")
    target = tmp_path / "t"
    target.mkdir()
    monkeypatch.setattr(transfer, "_write_all", full)
    with pytest.raises(HostDiskShort):
        await real_files.download(f"{agent.home}/f", target / "f")
    assert list(target.iterdir()) == []


async def test_a_download_that_is_called_off_writes_nothing_afterwards(
    real_files: Files, agent: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    written: list[str] = []

    def slow(fd: int, data: bytes) -> None:
        gate.wait()
        written.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    await real_files.write(f"{agent.home}/f", b"x")
    target = tmp_path / "t"
    target.mkdir()
    monkeypatch.setattr(transfer, "_write_all", slow)
    await gate.call_off(asyncio.create_task(real_files.download(f"{agent.home}/f", target / "f")))
    assert len(written) == 1 and written[0].startswith(str(target)), "the guest's bytes went to a descriptor that was closed"
    assert list(target.iterdir()) == []


# -- with a guest that lies

ENTRY = {"name": "f", "path": "/d/f", "type": "file", "size": 1, "mode": 0o644, "mtime_ns": 0, "owner": "user", "group": "user"}
FOLDER = {**ENTRY, "name": "d", "path": "/d", "type": "dir"}
READING = {"size": 1, "mode": 0o644, "mtime_ns": 0}


def reading(*pieces: bytes, stream: int = 1) -> Script:
    async def play(channel: GuestChannel) -> None:
        channel.message(READING)
        for piece in pieces:
            await channel.data(piece, stream)
        channel.end()

    return play


def folder_of(*entries: dict[str, Any]) -> dict[str, Script]:
    async def stat(channel: GuestChannel) -> None:
        channel.message(FOLDER)
        channel.end()

    async def listing(channel: GuestChannel) -> None:
        if channel.request["path"] == "/d":
            channel.message({"entries": list(entries)})
        channel.end()

    return {"file.stat": stat, "file.list": listing, "file.read": reading(b"evil")}


@pytest.mark.parametrize("name", ["..", ".", "", "/etc/passwd", "a/b", "../up", "a\0b", "x" * 256, "\ud800", "ü" * 128])
@pytest.mark.parametrize("kind", ["file", "dir", "symlink"])
async def test_a_name_that_is_no_name_ends_the_download(
    files: Files, guest: ScriptedGuest, tmp_path: Path, name: str, kind: str
) -> None:
    guest.script.update(folder_of({**ENTRY, "name": name, "type": kind}))
    with pytest.raises(AgentProtocol):
        await files.download("/d", tmp_path / "inner")
    assert [path.name for path in tmp_path.rglob("*")] == ["inner"]


async def test_a_download_does_not_follow_links_that_lie_in_the_target(files: Files, guest: ScriptedGuest, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "kept").write_text("kept")
    (target / "d").symlink_to(outside)
    (target / "f").symlink_to(outside / "kept")
    guest.script.update(folder_of({**ENTRY, "name": "f"}))
    await files.download("/d", target)
    assert not (target / "f").is_symlink()
    assert (target / "f").read_bytes() == b"evil"
    guest.script.update(folder_of({**FOLDER, "name": "d"}))
    with pytest.raises(AlreadyExists):
        await files.download("/d", target)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"kept": "kept"}


async def test_special_bits_of_the_guest_do_not_reach_the_host(files: Files, guest: ScriptedGuest, tmp_path: Path) -> None:
    guest.script.update(folder_of({**ENTRY, "mode": 0o106777}))
    await files.download("/d", tmp_path / "t")
    assert (tmp_path / "t" / "f").stat().st_mode & 0o7022 == 0


async def test_a_folder_without_end_ends_the_download(
    files: Files, guest: ScriptedGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(channel: GuestChannel) -> None:
        channel.message({"entries": [{**FOLDER, "name": "deeper"}, {**ENTRY, "type": "symlink"}]})
        channel.end()

    monkeypatch.setattr(transfer, "MAX_TREE_ENTRIES", 20)
    guest.script.update({**folder_of(), "file.list": endless})
    with pytest.raises(InvalidInput, match="archive"):
        await files.download("/d", tmp_path / "t")


async def test_a_file_without_end_is_cut_off(files: Files, guest: ScriptedGuest) -> None:
    async def endless(channel: GuestChannel) -> None:
        channel.message(READING)
        while not channel.was_reset.is_set():
            await channel.data(b"x" * 100_000)

    guest.script["file.read"] = endless
    with pytest.raises(AgentProtocol):
        await files.read("/dev/zero", max_bytes=1_000_000)
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)


@pytest.mark.parametrize(
    "lie",
    [
        {"name": None},
        {"type": "door"},
        {"size": -1},
        {"size": 1.5},
        {"mode": 1 << 40},
        {"mtime_ns": 10**400},
        {"owner": 0},
        {"target": 5},
        {"path": "x" * 70_000},
    ],
)
async def test_entries_with_a_lie_in_them_are_protocol_errors(files: Files, guest: ScriptedGuest, lie: dict[str, Any]) -> None:
    guest.script.update({"file.list": answers({"entries": [{**ENTRY, **lie}]}), "file.stat": answers({**ENTRY, **lie})})
    with pytest.raises(AgentProtocol):
        await files.list("/d")
    with pytest.raises(AgentProtocol):
        await files.stat("/d/f")


@pytest.mark.parametrize("script", [answers({}), answers({"entries": {}}), answers({"entries": [1]}), reading(b"x")])
async def test_a_listing_of_another_shape_is_a_protocol_error(files: Files, guest: ScriptedGuest, script: Script) -> None:
    guest.script["file.list"] = script
    with pytest.raises(AgentProtocol):
        await files.list("/d")


@pytest.mark.parametrize("written", [0, 4, -3, None, "3"])
async def test_a_write_that_is_not_confirmed_in_full_is_a_protocol_error(files: Files, guest: ScriptedGuest, written: Any) -> None:
    async def play(channel: GuestChannel) -> None:
        await channel.ended.wait()
        channel.message({"path": "/f", "bytes": written})
        channel.end()

    guest.script["file.write"] = play
    with pytest.raises(AgentProtocol):
        await files.write("/f", b"abc")


async def test_a_disk_that_fills_up_is_told_while_the_data_is_still_being_sent(files: Files, guest: ScriptedGuest) -> None:
    async def play(channel: GuestChannel) -> None:
        while not channel.received:
            channel.news.clear()
            await channel.news.wait()
        channel.reset("disk_full", "no space left in the guest")

    guest.script["file.write"] = play
    with pytest.raises(DiskFull):
        await files.write("/f", (b"x" * 65536 for _ in range(100_000)))


@pytest.mark.parametrize(
    "script",
    [
        answers({"watching": True}, {"event": {"type": "exploded", "path": "/"}}),
        answers({"watching": True}, {"event": None}),
        answers({"watching": True}, {"event": {"type": "created", "path": 1}}),
        answers({"watching": "yes"}),
        answers(),
    ],
)
async def test_a_watch_answered_with_nonsense_is_a_protocol_error(files: Files, guest: ScriptedGuest, script: Script) -> None:
    guest.script["file.watch"] = script
    with pytest.raises(AgentProtocol):
        async for _ in files.watch("/d"):
            pass
