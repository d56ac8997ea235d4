"""Folders through the agent: list, stat, mkdir, move, copy, remove."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from belljar.errors import AlreadyExists, BelljarError, Conflict, FileDenied, FileMissing, InvalidInput, IsADirectory, NotADirectory
from tests.guest.conftest import Guest

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root")


def plant(root: Path) -> None:
    (root / "tree/sub").mkdir(parents=True)
    (root / "tree/file").write_text("content")
    (root / "tree/sub/deep").write_text("deep")
    (root / "tree/link").symlink_to("file")
    (root / "tree/file").chmod(0o640)


async def test_list_shows_one_level_by_default_and_more_when_asked(guest: Guest) -> None:
    plant(guest.home)
    flat = {entry["name"]: entry for entry in await guest.entries("tree")}
    assert {name: entry["type"] for name, entry in flat.items()} == {"sub": "dir", "file": "file", "link": "symlink"}
    assert flat["link"]["target"] == "file"
    assert (flat["file"]["size"], flat["file"]["mode"]) == (7, 0o640)
    assert flat["file"]["path"] == str(guest.home / "tree/file")
    deep = {entry["path"] for entry in await guest.entries(".", depth=9)}
    assert any(path.endswith("tree/sub/deep") for path in deep)


async def test_list_of_very_many_files_comes_in_batches(guest: Guest) -> None:
    folder = guest.home / "many"
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number}-{'ü' * 100}").touch()
    assert len(await guest.entries("many")) == 3000


async def test_list_does_not_follow_links_into_loops(guest: Guest) -> None:
    (guest.home / "loop").symlink_to(".")
    assert len(await guest.entries(".", depth=50)) == 1


async def test_stat_describes_the_link_itself(guest: Guest) -> None:
    (guest.home / "broken").symlink_to("nowhere")
    entry = await guest.ask("file.stat", path="broken")
    assert (entry["type"], entry["target"]) == ("symlink", "nowhere")
    root = await guest.ask("file.stat", path="/")
    assert (root["name"], root["type"]) == ("/", "dir")


async def test_mkdir_makes_parents_and_is_idempotent(guest: Guest) -> None:
    await guest.ask("file.mkdir", path="a/b/c")
    await guest.ask("file.mkdir", path="a/b/c")
    assert (guest.home / "a/b/c").is_dir()
    with pytest.raises(AlreadyExists):
        await guest.ask("file.mkdir", path="a", parents=False)
    with pytest.raises(FileMissing):
        await guest.ask("file.mkdir", path="x/y", parents=False)
    (guest.home / "file").touch()
    with pytest.raises(NotADirectory):
        await guest.ask("file.mkdir", path="file")


async def test_move_renames_and_replaces(guest: Guest) -> None:
    plant(guest.home)
    await guest.ask("file.move", source="tree", target="moved")
    assert (guest.home / "moved/sub/deep").read_text() == "deep"
    (guest.home / "other").write_text("x")
    await guest.ask("file.move", source="other", target="moved/file")
    assert (guest.home / "moved/file").read_text() == "x"
    with pytest.raises(FileMissing):
        await guest.ask("file.move", source="gone", target="x")


async def test_move_over_file_systems_copies_and_removes(guest: Guest) -> None:
    plant(guest.home)
    target = Path("/dev/shm") / f"belljar-{os.getpid()}"
    if target.parent.stat().st_dev == guest.home.stat().st_dev:
        pytest.skip("/dev/shm is not another file system here")
    try:
        await guest.ask("file.move", source="tree", target=str(target))
        assert (target / "sub/deep").read_text() == "deep"
        assert (target / "link").is_symlink()
        assert not (guest.home / "tree").exists()
    finally:
        shutil.rmtree(target, ignore_errors=True)


async def test_copy_of_a_tree_keeps_modes_and_links(guest: Guest) -> None:
    plant(guest.home)
    await guest.ask("file.copy", source="tree", target="copy", recursive=True)
    assert (guest.home / "copy/sub/deep").read_text() == "deep"
    assert (guest.home / "copy/link").is_symlink()
    assert (guest.home / "copy/file").stat().st_mode & 0o777 == 0o640
    with pytest.raises(IsADirectory):
        await guest.ask("file.copy", source="tree", target="copy2")
    with pytest.raises(AlreadyExists):
        await guest.ask("file.copy", source="tree", target="copy", recursive=True)


@pytest.mark.parametrize("target", ["tree", "tree/sub", "tree/sub/new", "tree/../tree/x"])
async def test_copy_into_itself_is_refused(guest: Guest, target: str) -> None:
    plant(guest.home)
    with pytest.raises(InvalidInput):
        await guest.ask("file.copy", source="tree", target=target, recursive=True)


async def test_copy_of_a_file_onto_itself_keeps_it(guest: Guest) -> None:
    plant(guest.home)
    with pytest.raises(InvalidInput):
        await guest.ask("file.copy", source="tree/file", target="tree/link")
    assert (guest.home / "tree/file").read_text() == "content"


async def test_remove_takes_a_tree_but_not_what_its_links_point_to(guest: Guest) -> None:
    plant(guest.home)
    (guest.home / "kept").mkdir()
    (guest.home / "kept/file").touch()
    (guest.home / "tree/sub/out").symlink_to("../../kept")
    (guest.home / "out").symlink_to("kept")
    with pytest.raises(Conflict):
        await guest.ask("file.remove", path="tree")
    await guest.ask("file.remove", path="tree", recursive=True)
    await guest.ask("file.remove", path="out", recursive=True)
    assert (guest.home / "kept/file").exists()
    assert sorted(path.name for path in guest.home.iterdir()) == ["kept"]


@pytest.mark.parametrize(
    ("op", "params", "error"),
    [
        ("file.list", {"path": "missing"}, FileMissing),
        ("file.list", {"path": "/etc/passwd"}, NotADirectory),
        ("file.list", {"path": "/", "depth": 0}, InvalidInput),
        ("file.stat", {"path": "missing"}, FileMissing),
        ("file.stat", {}, InvalidInput),
        ("file.remove", {"path": "missing"}, FileMissing),
        ("file.remove", {"path": "missing", "recursive": True}, FileMissing),
        ("file.copy", {"source": "missing", "target": "x"}, FileMissing),
        ("file.copy", {"source": "/dev/zero", "target": "x"}, InvalidInput),
        ("file.move", {"source": "/etc/passwd", "target": ""}, InvalidInput),
    ],
)
async def test_bad_requests_are_typed_errors(guest: Guest, op: str, params: dict[str, object], error: type[BelljarError]) -> None:
    with pytest.raises(error):
        await guest.ask(op, **params)


@ROOT_ONLY
async def test_user_without_rights_is_denied(guest: Guest) -> None:
    plant(guest.home)
    (guest.home / "tree/sub").chmod(0o700)
    for op, params in (
        ("file.remove", {"path": "tree", "recursive": True}),
        ("file.mkdir", {"path": "new"}),
        ("file.move", {"source": "tree", "target": "new"}),
        ("file.copy", {"source": "tree/sub", "target": "/tmp/belljar-denied", "recursive": True}),
    ):
        with pytest.raises(FileDenied):
            await guest.ask(op, user="nobody", **params)
    shutil.rmtree("/tmp/belljar-denied", ignore_errors=True)
    assert (guest.home / "tree/sub/deep").exists()
