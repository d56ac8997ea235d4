"""The initrd: the archive's bytes, its content, and the order of modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.errors import BuildFailed
from belljar.templates import cpio
from belljar.templates.kernel import KernelFiles, agent_sources, load_order, make_initrd


def read_archive(data: bytes) -> dict[str, tuple[int, bytes]]:
    """An independent reader of the newc format: name -> (mode, content)."""
    found, at = {}, 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        start = (at + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[start : start + size])
        at = (start + size + 3) // 4 * 4


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    for name in ("busybox", "one.ko", "two.ko"):
        (tmp_path / name).write_bytes(name.encode() * 7)
    return KernelFiles(tmp_path, "6.1", ("two", "one"), "digest")


def test_an_archive_reads_back_as_it_was_written() -> None:
    entries = [cpio.file(f"d/{n}", b"x" * n, executable=n == 3) for n in range(6)] + [cpio.directory("d")]
    found = read_archive(cpio.archive(entries))
    assert list(found) == ["d", *(f"d/{n}" for n in range(6))]
    assert found["d"] == (0o040755, b"")
    assert found["d/3"] == (0o100755, b"xxx") and found["d/4"] == (0o100644, b"xxxx")


def test_the_same_content_makes_the_same_bytes_in_any_order() -> None:
    entries = [cpio.file("b", b"2"), cpio.file("a", b"1")]
    assert cpio.archive(entries) == cpio.archive(entries[::-1])


def test_the_smallest_archive_is_the_trailer_alone() -> None:
    header = b"070701" + b"%08X" % 1 + b"0" * 24 + b"%08X" % 1 + b"0" * 48 + b"%08X" % 11 + b"0" * 8
    assert cpio.archive([]) == header + b"TRAILER!!!\0" + bytes(3)


def test_the_initrd_holds_init_modules_and_agent(files: KernelFiles) -> None:
    found = read_archive(make_initrd(files, {"belljar/guest/init.py": b"agent"}))
    mode, init = found["init"]
    assert mode == 0o100755 and init.startswith(b"#!/bin/busybox sh\n")
    assert found["lib/modules.order"][1] == b"two\none\n"
    assert found["lib/one.ko"][1] == b"one.ko" * 7
    assert found["agent/belljar/guest/init.py"][1] == b"agent"
    assert b"belljar.guest.init" in found["agent/start.py"][1]
    names = list(found)
    assert all(names.index(str(Path(name).parent)) < names.index(name) for name in names if "/" in name)


def test_a_change_of_the_agent_changes_the_initrd(files: KernelFiles) -> None:
    assert make_initrd(files, {"belljar/a.py": b"1"}) == make_initrd(files, {"belljar/a.py": b"1"})
    assert make_initrd(files, {"belljar/a.py": b"1"}) != make_initrd(files, {"belljar/a.py": b"2"})


def test_the_agent_brings_the_wire_and_nothing_of_the_host() -> None:
    names = agent_sources().keys()
    assert {"belljar/__init__.py", "belljar/wire/frames.py", "belljar/guest/init.py", "belljar/kernel/zygote.py"} <= names
    parts = ("belljar/wire/", "belljar/guest/", "belljar/kernel/")
    assert all(name == "belljar/__init__.py" or name.startswith(parts) for name in names)


def module(*depends: str) -> Callable[[], bytes]:
    return lambda: b"\x7fELF\0license=GPL\0depends=" + ",".join(depends).encode() + b"\0name=x\0"


def test_modules_load_after_what_they_depend_on() -> None:
    readers = {"blk": module("virtio", "virtio-ring"), "virtio_ring": module(), "virtio": module("virtio-ring"), "fs": module()}
    assert load_order(("blk", "fs"), readers) == ["virtio_ring", "virtio", "blk", "fs"]


def test_a_missing_module_fails_the_build() -> None:
    with pytest.raises(BuildFailed, match="no module gone"):
        load_order(("blk",), {"blk": module("gone")})
