"""Guest memory: images, deltas and the pages of a live process."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from belljar.errors import SandboxError, SandboxGone
from belljar.vm import memory
from belljar.vm.spec import PAGE

SIZE = 256 * PAGE


def image_of(content: bytes) -> memory.MemoryImage:
    fd = memory.new_memory(SIZE)
    os.pwrite(fd, content, 0)
    return memory.MemoryImage(memory.seal(fd), SIZE, memory.no_pages(SIZE))


def content_of(image: memory.MemoryImage) -> bytes:
    return os.pread(image.fd, image.size, 0)


def test_a_sealed_image_can_be_neither_written_nor_resized_nor_mapped_for_writing() -> None:
    image = image_of(b"x" * PAGE)
    again = os.open(f"/proc/self/fd/{image.fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"y", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(again, SIZE * 2)
    with pytest.raises(PermissionError):
        mmap.mmap(again, SIZE, flags=mmap.MAP_SHARED)
    with pytest.raises(PermissionError):
        fcntl.fcntl(again, 1033, 0)  # further seals: the set of seals is sealed, too
    private = mmap.mmap(again, SIZE, flags=mmap.MAP_PRIVATE)
    private[0:1] = b"z"
    assert content_of(image)[:1] == b"x", "a private mapping wrote through to the image"


def test_runs_join_across_small_gaps_only() -> None:
    pages = memory.no_pages(SIZE)
    pages[[1, 2, 5, 100]] = True
    assert memory.runs_of(pages) == [(PAGE, 2 * PAGE), (5 * PAGE, PAGE), (100 * PAGE, PAGE)]
    assert memory.runs_of(pages, gap=2) == [(PAGE, 5 * PAGE), (100 * PAGE, PAGE)]
    assert memory.runs_of(memory.no_pages(SIZE)) == []


def test_a_template_survives_the_disk_with_its_holes(tmp_path: Path) -> None:
    fd = memory.new_memory(SIZE)
    os.pwrite(fd, b"a" * PAGE, 0)
    os.pwrite(fd, b"b" * PAGE, 200 * PAGE)
    memory.save_memory(fd, SIZE, tmp_path / "memory")
    loaded = memory.load_image(tmp_path / "memory", SIZE)
    assert content_of(loaded) == os.pread(fd, SIZE, 0)
    assert (tmp_path / "memory").stat().st_blocks * 512 < SIZE // 4, "zero pages were written out"


def test_a_delta_laid_over_its_template_gives_the_memory_back_zeroed_pages_included(tmp_path: Path) -> None:
    base = memory.new_memory(SIZE)
    os.pwrite(base, b"t" * SIZE, 0)
    memory.save_memory(base, SIZE, tmp_path / "memory")
    changed = bytearray(b"t" * SIZE)
    changed[3 * PAGE : 4 * PAGE] = bytes(PAGE)  # a page that the guest cleared must not show the template's content
    changed[250 * PAGE : 252 * PAGE] = b"n" * (2 * PAGE)
    delta = memory.no_pages(SIZE)
    delta[[3, 250, 251]] = True
    fd = memory.new_memory(SIZE)
    os.pwrite(fd, changed, 0)
    memory.save_delta(memory.MemoryImage(fd, SIZE, delta), tmp_path / "pages", tmp_path / "map")
    loaded = memory.load_image(tmp_path / "memory", SIZE, tmp_path / "pages", tmp_path / "map")
    assert content_of(loaded) == bytes(changed)
    assert np.array_equal(loaded.delta, delta)
    assert (tmp_path / "pages").stat().st_size == 3 * PAGE


def test_a_damaged_delta_is_refused(tmp_path: Path) -> None:
    base = memory.new_memory(SIZE)
    memory.save_memory(base, SIZE, tmp_path / "memory")
    delta = memory.no_pages(SIZE)
    delta[:2] = True
    memory.save_delta(memory.MemoryImage(base, SIZE, delta), tmp_path / "pages", tmp_path / "map")
    os.truncate(tmp_path / "pages", PAGE)
    with pytest.raises(SandboxError, match="damaged"):
        memory.load_image(tmp_path / "memory", SIZE, tmp_path / "pages", tmp_path / "map")


HOLDER = """
import mmap, os, sys
fd = int(sys.argv[1])
ram = mmap.mmap(fd, {size}, flags=mmap.MAP_PRIVATE)
ram[0]                      # read only: stays the image's
ram[5 * 4096] = 0x41
ram[77 * 4096:79 * 4096] = b"B" * 8192
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen[bytes], memory.MemoryImage]]:
    """A process that maps an image privately and has written three of its pages, as a VMM would."""
    image = image_of(b"i" * SIZE)
    argv = [sys.executable, "-c", HOLDER.format(size=SIZE), str(image.fd)]
    child = subprocess.Popen(argv, pass_fds=[image.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline() == b"mapped\n"
    yield child, image
    child.kill()
    child.wait()


def test_only_written_pages_count_as_private_and_a_capture_holds_all(
    holder: tuple[subprocess.Popen[bytes], memory.MemoryImage],
) -> None:
    child, image = holder
    ram = memory.find_ram(child.pid, SIZE)
    written = memory.private_pages(ram)
    assert list(np.flatnonzero(written)) == [5, 77, 78]
    target = memory.new_memory(SIZE)
    memory.copy_private(ram, written, target)
    memory.copy_rest(image, written, target)
    expected = bytearray(b"i" * SIZE)
    expected[5 * PAGE] = 0x41
    expected[77 * PAGE : 79 * PAGE] = b"B" * (2 * PAGE)
    assert os.pread(target, SIZE, 0) == bytes(expected)


def test_an_image_is_borrowed_only_if_it_is_the_one_that_was_lent(
    holder: tuple[subprocess.Popen[bytes], memory.MemoryImage],
) -> None:
    child, image = holder
    borrowed = memory.borrow_image(child.pid, image.fd, image.identity, SIZE, image.delta)
    assert borrowed is not None and borrowed.identity == image.identity
    other = image_of(b"evil" * PAGE)
    assert memory.borrow_image(child.pid, image.fd, other.identity, SIZE, image.delta) is None
    assert memory.borrow_image(child.pid, 2, image.identity, SIZE, image.delta) is None


def test_an_unsealed_memfd_is_never_borrowed() -> None:
    fd = memory.new_memory(SIZE)
    image = memory.MemoryImage(fd, SIZE, memory.no_pages(SIZE))
    assert memory.borrow_image(os.getpid(), fd, image.identity, SIZE, image.delta) is None


def test_the_memory_of_an_ended_process_is_a_typed_error() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(SandboxGone):
        memory.find_ram(child.pid, SIZE)


SAVE_AT_THE_LIMIT = """
import os, resource, sys
from pathlib import Path
from belljar.vm.memory import MemoryImage, copy_file_runs, new_memory, no_pages, save_delta, seal
size = 64 * 4096
fd = new_memory(size)
os.pwrite(fd, b"x" * size, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, size - 100))
try:
    if sys.argv[1] == "whole":
        copy_file_runs(fd, [(0, size)], os.open(sys.argv[2], os.O_RDWR | os.O_CREAT))
    else:
        save_delta(MemoryImage(seal(fd), size, ~no_pages(size)), Path(sys.argv[2]), Path(sys.argv[2] + ".map"))
except OSError as problem:
    print("refused:", problem.strerror)
"""


@pytest.mark.parametrize("way", ["whole", "delta"])
def test_a_file_that_does_not_take_all_of_the_memory_is_an_error(tmp_path: Path, way: str) -> None:
    """A write at the edge of a full disk, or of a limit, takes a part and succeeds."""
    argv = [sys.executable, "-c", SAVE_AT_THE_LIMIT, way, str(tmp_path / "memory")]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout == "refused: File too large\n", f"a short file was taken for a whole one: {told.stdout}{told.stderr[-500:]}"
