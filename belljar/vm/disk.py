"""Copies of sparse disk files: by reference where the file system can, by their data extents elsewhere."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from belljar.vm.memory import data_runs, write_all

_FICLONE = 0x40049409
_CHUNK = 1 << 20


def clone_file(source: Path, target: Path, *, sync: bool = False) -> None:
    """Copy a file, keeping its holes. `sync` makes the copy durable."""
    with source.open("rb", buffering=0) as original, target.open("wb", buffering=0) as copy:
        size = os.fstat(original.fileno()).st_size
        if not _reflink(original.fileno(), copy.fileno()):
            copy.truncate(size)
            buffer = memoryview(bytearray(_CHUNK))
            for offset, length in data_runs(original.fileno(), size):
                for start in range(offset, offset + length, _CHUNK):
                    got = os.preadv(original.fileno(), [buffer[: min(_CHUNK, offset + length - start)]], start)
                    write_all(copy.fileno(), buffer[:got], start)
        if sync:
            os.fsync(copy.fileno())


def _reflink(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def probe_reflink(folder: Path) -> bool:
    """Whether copies in this folder are free, by making one."""
    source, target = folder / f".reflink-{os.getpid()}-a", folder / f".reflink-{os.getpid()}-b"
    try:
        source.write_bytes(b"x" * 4096)
        with source.open("rb") as original, target.open("wb") as copy:
            return _reflink(original.fileno(), copy.fileno())
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
