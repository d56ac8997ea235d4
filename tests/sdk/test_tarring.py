"""Folders as tar streams: what is packed comes back, and what a guest sends stays inside its target."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from belljar.sdk import tarring
from belljar.sdk.errors import InvalidArgument, Lost
from belljar.sdk.tarring import folder_bytes, pack, unpack


def archive(*entries: tuple[str, bytes | None] | tarfile.TarInfo, extra: bytes = b"") -> io.BytesIO:
    """Plain files, folders (None) and whatever else a guest may think of."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            if entry[1] is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(entry[1])
                tar.addfile(info, io.BytesIO(entry[1]))
    return io.BytesIO(held.getvalue() + extra)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def tree(folder: Path) -> dict[str, bytes | None]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_what_is_packed_comes_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    long = "n" * 200
    (source / long / long).mkdir(parents=True)
    (source / long / long / "deep ü").write_bytes(b"d")
    (source / "empty").write_bytes(b"")
    (source / "large").write_bytes(os.urandom(600_001))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o700)
    (source / "link").symlink_to("/etc/passwd")
    (source / "folder link").symlink_to(tmp_path)
    packed = b"".join(pack(source))
    assert len(packed) % 512 == 0 and folder_bytes(source) <= len(packed) <= folder_bytes(source) + 10_000
    done = unpack(io.BytesIO(packed), tmp_path / "copy")
    wanted = {name: data for name, data in tree(source).items() if "link" not in name}
    assert tree(tmp_path / "copy") == wanted and (done.files, done.skipped) == (4, ())
    assert os.access(tmp_path / "copy" / "run.sh", os.X_OK) and not os.access(tmp_path / "copy" / "empty", os.X_OK)


def test_a_file_that_shrinks_while_it_is_read_keeps_the_archive_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 700_000)
    (tmp_path / "b").write_bytes(b"after")
    pieces = pack(tmp_path)
    begun = [next(pieces), next(pieces)]
    (tmp_path / "a").write_bytes(b"")
    unpack(io.BytesIO(b"".join([*begun, *pieces])), tmp_path / "copy")
    assert (tmp_path / "copy" / "b").read_bytes() == b"after"


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/out", "a/..", "C:\\out", "c:/out", "x" * 300])
def test_names_that_lead_elsewhere_are_skipped(tmp_path: Path, name: str) -> None:
    done = unpack(archive((name, b"evil"), ("fine", b"ok")), tmp_path / "in" / "target")
    assert done.files == 1 and len(done.skipped) == 1
    assert tree(tmp_path) == {"in": None, "in/target": None, "in/target/fine": b"ok"}


def test_links_and_devices_are_never_made(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host")
    done = unpack(
        archive(
            special("out", tarfile.SYMTYPE, str(tmp_path)),
            ("out/secret", b"guest"),
            special("hard", tarfile.LNKTYPE, "../secret"),
            special("pipe", tarfile.FIFOTYPE),
            special("null", tarfile.CHRTYPE),
        ),
        tmp_path / "target",
    )
    assert set(done.skipped) == {"out", "hard", "pipe", "null"}
    assert (tmp_path / "secret").read_text() == "host"
    assert tree(tmp_path / "target") == {"out": None, "out/secret": b"guest"}


def test_links_of_this_machine_are_never_followed(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "way").symlink_to(outside)
    with pytest.raises(InvalidArgument, match="way"):
        unpack(archive(("way/file", b"evil")), target)
    assert tree(outside) == {}
    (target / "name").symlink_to(outside / "victim")
    unpack(archive(("name", b"new")), target)
    assert not (outside / "victim").exists() and (target / "name").read_bytes() == b"new"
    with pytest.raises(InvalidArgument):
        unpack(archive(("f", b"")), target / "way")


def test_it_is_merged_into_a_folder_that_exists(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "a").mkdir(parents=True)
    (target / "a" / "kept").write_bytes(b"kept")
    (target / "a" / "old").write_bytes(b"old")
    unpack(archive(("./a/old", b"new"), ("./b", None)), target)
    assert tree(target) == {"a": None, "a/kept": b"kept", "a/old": b"new", "b": None}
    with pytest.raises(InvalidArgument, match="in the way"):
        unpack(archive(("a", b"a file now")), target)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_broken_archives_are_errors_and_leave_nothing(tmp_path: Path) -> None:
    good = archive(("file", b"x" * 5000)).getvalue()
    for broken in (b"no archive at all" * 100, good[:2000], good[:100]):
        with pytest.raises(Lost):
            unpack(io.BytesIO(broken), tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_a_header_may_not_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, tarring.MAX_HEADER_BYTES + 1
    held = info.tobuf(tarfile.USTAR_FORMAT) + bytes(2 << 20)
    with pytest.raises(Lost, match="header"):
        unpack(io.BytesIO(held), tmp_path / "target")


def test_too_many_entries_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarring, "MAX_ENTRIES", 3)
    with pytest.raises(Lost, match="entries"):
        unpack(archive(*((f"f{n}", b"") for n in range(4))), tmp_path / "target")
