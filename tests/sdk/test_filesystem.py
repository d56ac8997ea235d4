"""Files through the SDK: read, written, watched, and carried to and fro by the folder."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from belljar import AsyncSandbox, Sandbox, errors


def test_reading_and_writing(box: Sandbox) -> None:
    fs = box.filesystem
    fs.write("/tmp/fs/ü +a.txt", "text")
    fs.write("/tmp/fs/ü +a.txt", b" and more", append=True)
    assert fs.read("/tmp/fs/ü +a.txt") == b"text and more"
    assert fs.read("/tmp/fs/ü +a.txt", offset=5, length=3) == b"and"
    assert b"".join(fs.read_stream("/tmp/fs/ü +a.txt", offset=9)) == b"more"
    fs.write("/tmp/fs/pieces", (bytes([n]) * 1000 for n in range(5)), mode=0o600)
    assert fs.stat("/tmp/fs/pieces").size == 5000 and fs.stat("/tmp/fs/pieces").permissions == "0600"
    fs.write("/tmp/fs/file", io.BytesIO(b"line\nline\n"))
    assert fs.read("/tmp/fs/file") == b"line\nline\n"
    box.write("/tmp/fs/short", "s")
    assert box.read("/tmp/fs/short") == b"s"
    with pytest.raises(errors.FileDenied):
        fs.write("/etc/denied", b"")
    fs.write("/etc/allowed", b"", user="root")
    assert fs.stat("/etc/allowed").owner == "root"


def test_folders(box: Sandbox) -> None:
    fs = box.filesystem
    fs.mkdir("/tmp/tree/a/b")
    fs.write("/tmp/tree/a/b/c", b"1")
    fs.copy("/tmp/tree/a", "/tmp/tree/copy", recursive=True)
    fs.move("/tmp/tree/a/b/c", "/tmp/tree/moved")
    assert sorted(entry.path for entry in fs.listdir("/tmp/tree", depth=3)) == [
        "/tmp/tree/a",
        "/tmp/tree/a/b",
        "/tmp/tree/copy",
        "/tmp/tree/copy/b",
        "/tmp/tree/copy/b/c",
        "/tmp/tree/moved",
    ]
    assert [place for place, _, _ in fs.walk("/tmp/tree")] == [
        "/tmp/tree",
        "/tmp/tree/a",
        "/tmp/tree/a/b",
        "/tmp/tree/copy",
        "/tmp/tree/copy/b",
    ]
    assert not fs.exists("/tmp/tree/moved/below") and not fs.exists("/tmp/none")
    with pytest.raises(errors.Conflict, match="not empty"):
        fs.remove("/tmp/tree")
    fs.remove("/tmp/tree", recursive=True)
    assert not fs.exists("/tmp/tree")
    with pytest.raises(errors.FileMissing):
        fs.listdir("/tmp/tree")


def test_changes_are_watched(box: Sandbox) -> None:
    box.filesystem.mkdir("/tmp/watched/below")
    with box.filesystem.watch("/tmp/watched", recursive=True) as changes:
        box.exec("echo 1 > /tmp/watched/below/new; mv /tmp/watched/below/new /tmp/watched/old")
        seen = []
        for change in changes:
            seen.append((change.type, change.path))
            if change.type == "moved":
                assert change.source == "/tmp/watched/below/new"
                break
    assert ("created", "/tmp/watched/below/new") in seen and seen[-1][1] == "/tmp/watched/old"
    with pytest.raises(errors.FileMissing), box.filesystem.watch("/tmp/no/such"):
        pass


def test_a_folder_goes_up_and_comes_down(box: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "data.bin").write_bytes(os.urandom(300_000))
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("/etc/passwd")
    told: list[tuple[int, int | None]] = []
    box.filesystem.upload(source, "/tmp/carried/here", progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] and [done for done, _ in told] == sorted(done for done, _ in told)
    assert box.exec("cd /tmp/carried/here; ./run.sh; find . | sort").stdout.split() == [
        "ran",
        ".",
        "./run.sh",
        "./sub",
        "./sub/data.bin",
        "./sub/empty",
    ]
    box.exec("ln -s /etc /tmp/carried/here/etc")
    done = box.filesystem.download("/tmp/carried/here", tmp_path / "back", progress=True)
    assert done.files == 2 and [name.lstrip("./") for name in done.skipped] == ["etc"]
    assert (tmp_path / "back" / "sub" / "data.bin").read_bytes() == (source / "sub" / "data.bin").read_bytes()
    assert (tmp_path / "back" / "sub" / "empty").is_dir() and os.access(tmp_path / "back" / "run.sh", os.X_OK)


def test_one_file_goes_up_and_comes_down(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o755)
    box.filesystem.upload(tmp_path / "tool", "/tmp/one/tool")
    assert box.exec("/tmp/one/tool").stdout == "tool\n"
    assert box.filesystem.download("/tmp/one/tool", tmp_path / "copy").bytes == 20
    with pytest.raises(errors.InvalidInput, match="max_bytes"):
        box.filesystem.download("/usr/bin/python3", tmp_path / "large", max_bytes=1_000_000)
    with pytest.raises(errors.InvalidInput, match="max_bytes"):
        box.filesystem.download("/tmp/one", tmp_path / "folder", max_bytes=100)
    with pytest.raises(errors.FileMissing):
        box.filesystem.download("/tmp/one/none", tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        box.filesystem.upload(tmp_path / "none", "/tmp/one/none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "tool"]


def memory_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def test_large_files_are_not_held_in_memory(box: Sandbox, tmp_path: Path) -> None:
    size, piece = 48 << 20, os.urandom(1 << 20)
    with (tmp_path / "large").open("wb") as file:
        for _ in range(size >> 20):
            file.write(piece)
    held = [memory_kib()]
    box.filesystem.upload(tmp_path / "large", "/tmp/large", progress=lambda done, total: held.append(memory_kib()))
    box.filesystem.download("/tmp/large", tmp_path / "back", progress=lambda done, total: held.append(memory_kib()))
    assert len(held) > 100 and max(held) - held[0] < 16 << 10
    assert hashlib.sha256((tmp_path / "back").read_bytes()).digest() == hashlib.sha256(piece * (size >> 20)).digest()
    box.filesystem.remove("/tmp/large")


async def test_files_awaited(abox: AsyncSandbox, tmp_path: Path) -> None:
    fs = abox.filesystem

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    await fs.write("/tmp/awaited/file", pieces())
    assert await fs.read("/tmp/awaited/file") == b"one two"
    assert b"".join([piece async for piece in fs.read_stream("/tmp/awaited/file")]) == b"one two"
    (tmp_path / "up" / "in").mkdir(parents=True)
    (tmp_path / "up" / "in" / "f").write_bytes(b"f")
    told: list[int] = []

    async def tell(done: int, total: int | None) -> None:
        told.append(done)

    await fs.upload(tmp_path / "up", "/tmp/awaited/up", progress=tell)
    assert told and await fs.exists("/tmp/awaited/up/in/f")
    await fs.download("/tmp/awaited/up", tmp_path / "down")
    await fs.download("/tmp/awaited/file", tmp_path / "copy")
    assert (tmp_path / "down" / "in" / "f").read_bytes() == b"f" and (tmp_path / "copy").read_bytes() == b"one two"
    assert [place async for place, _, _ in fs.walk("/tmp/awaited")] == ["/tmp/awaited", "/tmp/awaited/up", "/tmp/awaited/up/in"]
    async with fs.watch("/tmp/awaited") as changes:
        await abox.exec("touch /tmp/awaited/new")
        assert (await anext(changes)).path == "/tmp/awaited/new"


def test_names_that_are_no_utf8(box: Sandbox, tmp_path: Path) -> None:
    box.exec("mkdir -p /tmp/odd && printf x > /tmp/odd/$(printf 'a\\377b')")
    (entry,) = box.filesystem.listdir("/tmp/odd")
    assert box.filesystem.read(entry.path) == b"x" and box.filesystem.stat(entry.path).size == 1
    box.filesystem.move(entry.path, "/tmp/odd/\udcfe")
    box.filesystem.mkdir("/tmp/odd/\udcfd")
    assert box.exec("ls /tmp/odd | od -An -tx1").stdout.split() == ["fd", "0a", "fe", "0a"]
    assert box.filesystem.download("/tmp/odd", tmp_path / "odd").files == 1
    box.filesystem.remove("/tmp/odd", recursive=True)


def test_paths_and_open_files(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("grüße\n", encoding="utf-8")
    place = PurePosixPath("/tmp/paths/a.txt")
    with (tmp_path / "text").open(encoding="utf-8") as file:
        box.filesystem.write(place, file)
    assert box.filesystem.read(place).decode() == "grüße\n" and box.filesystem.stat(place).name == "a.txt"
    assert [entry.path for entry in box.filesystem.listdir(place.parent)] == [str(place)]
    box.filesystem.copy(place, PureWindowsPath(r"\tmp\paths\b.txt"))
    assert box.filesystem.exists("/tmp/paths/b.txt")
    assert [found for found, *_ in box.filesystem.walk(place.parent)] == ["/tmp/paths"]
    box.filesystem.download(place, tmp_path / "new" / "folders" / "a.txt")
    assert (tmp_path / "new/folders/a.txt").read_text(encoding="utf-8") == "grüße\n"
    with pytest.raises(errors.InvalidInput, match="bytes, text"):
        box.filesystem.write(place, 5)  # type: ignore[arg-type]
    box.filesystem.remove("/tmp/paths", recursive=True)
