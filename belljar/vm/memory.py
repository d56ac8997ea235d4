"""Guest memory as sealed memfds, and as pages on disk.

A running machine maps a *memory image* privately: a memfd that is sealed against every change, so that not even a VMM that was
taken over can alter what other machines start from. What the machine wrote lives in its own private pages.

    image of a template   = the template's memory file
    image of a snapshot   = the template's memory file + the pages that differ from it ("delta")
    memory of a machine   = its image + its private pages

A new image copies the private pages while the machine is paused, and the rest from the old image after it runs again: the old
image cannot change any more. Deltas always refer to the template, so a chain of snapshots never gets longer than one step.

Copies go through a small buffer and `pwrite`, in one thread per core: a written-whole page of a memfd need not be zeroed and
faulted in first, which makes this two to three times as fast as reading into a mapping of it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from belljar.errors import SandboxError, SandboxGone
from belljar.vm.spec import PAGE

Pages = npt.NDArray[np.bool_]
Run = tuple[int, int]  # offset, length in bytes

_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # SEAL, SHRINK, GROW, WRITE
_PRESENT, _SWAPPED, _FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
_CHUNK = 256 << 10
_WORKERS = 2
# Private runs closer together than this are read as one: a clean page between them costs less than a system call.
_MERGE_GAP = 16


@dataclass
class MemoryImage:
    """A sealed memfd, and which of its pages differ from the template's memory. The owner calls `close`."""

    fd: int
    size: int
    delta: Pages

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: what tells this memfd from any other."""
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def duplicate(self) -> MemoryImage:
        """Another handle on the same memory."""
        return MemoryImage(fcntl.fcntl(self.fd, fcntl.F_DUPFD_CLOEXEC, 3), self.size, self.delta)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def no_pages(size: int) -> Pages:
    return np.zeros(size // PAGE, dtype=np.bool_)


def new_memory(size: int) -> int:
    """A writable memfd for guest RAM."""
    fd = os.memfd_create("belljar-ram", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def seal(fd: int) -> int:
    """Nothing can change it from here on: no write, no resize, no unsealing, by anyone."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    return fd


def borrow_image(pid: int, fd: int, identity: tuple[int, int], size: int, delta: Pages) -> MemoryImage | None:
    """The image that another process maps, or None if it is not the one that was handed to it.

    The holder may be a VMM that was taken over: only the very inode that it was given, still sealed, is accepted.
    """
    try:
        mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    image = MemoryImage(mine, size, delta)
    try:
        sealed = fcntl.fcntl(mine, _F_GET_SEALS) == _ALL_SEALS
    except OSError:
        sealed = False
    if sealed and image.identity == identity and os.fstat(mine).st_size == size:
        return image
    image.close()
    return None


def runs_of(pages: Pages, *, gap: int = 0) -> list[Run]:
    """Runs of set pages as byte ranges; runs at most `gap` pages apart are joined."""
    edges = np.flatnonzero(np.diff(pages.view(np.int8), prepend=0, append=0))
    starts, stops = edges[::2], edges[1::2]
    if gap and len(starts) > 1:
        keep = starts[1:] - stops[:-1] > gap
        starts, stops = starts[np.concatenate(([True], keep))], stops[np.concatenate((keep, [True]))]
    return [(int(low) * PAGE, int(high - low) * PAGE) for low, high in zip(starts, stops, strict=True)]


def data_runs(fd: int, size: int) -> Iterator[Run]:
    """The parts of a sparse file that hold data."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        offset = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        yield start, offset - start


def _pieces(runs: Iterable[Run]) -> Iterator[Run]:
    for offset, length in runs:
        for start in range(offset, offset + length, _CHUNK):
            yield start, min(_CHUNK, offset + length - start)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """A file system that is about to be full takes a part of a write and says so only by its size."""
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def _copy(runs: Iterable[Run], read: Callable[[memoryview, int], int], target: int, *, skip_zeros: bool = False) -> None:
    """Copy byte ranges into `target`, at the same offsets, on all cores."""
    pieces = list(_pieces(runs))
    zeros = bytes(_CHUNK)

    def work(mine: list[Run]) -> None:
        buffer = memoryview(bytearray(_CHUNK))
        for offset, length in mine:
            part = buffer[:length]
            got = read(part, offset)
            if got != length:
                raise SandboxError(f"guest memory ended early: {got} of {length} bytes at {offset:#x}")
            if skip_zeros and part == zeros[:length]:
                continue
            write_all(target, part, offset)

    share = max(1, -(-len(pieces) // _WORKERS))
    with ThreadPoolExecutor(_WORKERS) as pool:
        for done in [pool.submit(work, pieces[i : i + share]) for i in range(0, len(pieces), share)]:
            done.result()


def copy_file_runs(source: int, runs: Iterable[Run], target: int, *, skip_zeros: bool = False) -> None:
    _copy(runs, lambda part, offset: os.preadv(source, [part], offset), target, skip_zeros=skip_zeros)


@dataclass(frozen=True)
class RamMapping:
    """Where a process has its guest memory mapped."""

    pid: int
    start: int
    size: int


def find_ram(pid: int, size: int) -> RamMapping:
    """Look the mapping up in /proc; raises if the process is gone or has no such mapping."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError as problem:
        raise SandboxGone(f"the machine's process {pid} has ended") from problem
    for line in lines:
        if "memfd:belljar-ram" in line:
            low, high = (int(end, 16) for end in line.split(None, 1)[0].split("-"))
            if high - low == size:
                return RamMapping(pid, low, size)
    raise SandboxError(f"process {pid} does not map guest memory of {size >> 20} MiB")


def private_pages(ram: RamMapping) -> Pages:
    """Pages that the machine has written since it was restored: in memory or swapped out, and not the image's own."""
    with Path(f"/proc/{ram.pid}/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(ram.start // PAGE * 8)
        wanted = ram.size // PAGE * 8
        raw = bytearray()
        while len(raw) < wanted and (part := pagemap.read(wanted - len(raw))):
            raw += part
    if len(raw) != wanted:
        raise SandboxGone(f"the machine's process {ram.pid} has ended")
    entries = np.frombuffer(raw, dtype=np.uint64)
    private: Pages = ((entries & (_PRESENT | _SWAPPED)) != 0) & ((entries & _FILE) == 0)
    return private


def private_bytes(ram: RamMapping) -> int:
    return int(private_pages(ram).sum()) * PAGE


def copy_private(ram: RamMapping, pages: Pages, target: int) -> None:
    """Copy the machine's private pages. It must be paused."""
    memory = os.open(f"/proc/{ram.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _copy(runs_of(pages, gap=_MERGE_GAP), lambda part, offset: os.preadv(memory, [part], ram.start + offset), target)
    except OSError as problem:
        raise SandboxGone(f"the machine's memory could not be read: {problem.strerror}") from problem
    finally:
        os.close(memory)


def copy_rest(base: MemoryImage, written: Pages, target: int) -> None:
    """Copy what the machine did not write from the image it runs on; holes stay holes."""
    held = no_pages(base.size)
    for offset, length in data_runs(base.fd, base.size):
        held[offset // PAGE : -(-(offset + length) // PAGE)] = True
    copy_file_runs(base.fd, runs_of(held & ~written), target)


def load_image(memory: Path, size: int, pages: Path | None = None, pagemap: Path | None = None) -> MemoryImage:
    """A template's memory file, with a snapshot's pages laid over it, as a sealed memfd."""
    target = new_memory(size)
    try:
        with memory.open("rb", buffering=0) as source:
            copy_file_runs(source.fileno(), data_runs(source.fileno(), size), target)
        delta = no_pages(size)
        if pages is not None and pagemap is not None:
            delta = load_map(pagemap, size)
            _lay_over(pages, delta, target)
    except BaseException:
        os.close(target)
        raise
    return MemoryImage(seal(target), size, delta)


def _lay_over(pages: Path, delta: Pages, target: int) -> None:
    with pages.open("rb", buffering=0) as source:
        if os.fstat(source.fileno()).st_size != int(delta.sum()) * PAGE:
            raise SandboxError(f"{pages.parent.name}: the saved pages do not match their map; the snapshot is damaged")
        position = 0
        buffer = memoryview(bytearray(_CHUNK))
        for offset, length in _pieces(runs_of(delta)):
            got = os.preadv(source.fileno(), [buffer[:length]], position)
            write_all(target, buffer[:got], offset)
            position += length


def save_memory(fd: int, size: int, target: Path) -> None:
    """Write a whole image as a sparse file: a template's memory."""
    with target.open("wb", buffering=0) as file:
        file.truncate(size)
        copy_file_runs(fd, data_runs(fd, size), file.fileno(), skip_zeros=True)
        os.fsync(file.fileno())


def save_delta(image: MemoryImage, pages: Path, pagemap: Path) -> None:
    """Write the pages that differ from the template, packed, and the map that says where they go."""
    with pages.open("wb", buffering=0) as file:
        buffer = memoryview(bytearray(_CHUNK))
        position = 0
        for offset, length in _pieces(runs_of(image.delta)):
            got = os.preadv(image.fd, [buffer[:length]], offset)
            write_all(file.fileno(), buffer[:got], position)
            position += got
        os.fsync(file.fileno())
    save_map(image.delta, pagemap)


def save_map(delta: Pages, pagemap: Path) -> None:
    with pagemap.open("wb") as file:
        file.write(np.packbits(delta).tobytes())
        file.flush()
        os.fsync(file.fileno())


def load_map(pagemap: Path, size: int) -> Pages:
    return np.unpackbits(np.fromfile(pagemap, dtype=np.uint8), count=size // PAGE).astype(np.bool_)
