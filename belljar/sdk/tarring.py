"""Folders as tar streams. What comes from a guest is hostile: only plain files and folders are taken, by checked names.

An archive is unpacked into a new folder of our own, in which no link is ever made, and put into place from there.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from belljar.sdk.errors import InvalidArgument, Lost
from belljar.sdk.values import Transfer

PIECE_BYTES = 256 * 1024
# What the header of one entry may take; a hostile one would have all of memory.
MAX_HEADER_BYTES = 1024 * 1024
MAX_ENTRIES = 1_000_000


def folder_bytes(folder: Path) -> int:
    """How much `pack` will yield, but for names that need a longer header."""
    block = tarfile.BLOCKSIZE
    sizes = [path.stat().st_size if path.is_file() else 0 for path in _walk(folder)]
    return sum(block + size + -size % block for size in sizes) + 2 * block


def pack(folder: Path) -> Iterator[bytes]:
    """A folder's content as a tar stream. Links and what is neither file nor folder are left out."""
    for path in _walk(folder):
        info = path.lstat()
        entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
        entry.mode, entry.mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
        if stat.S_ISDIR(info.st_mode):
            entry.type = tarfile.DIRTYPE
            yield entry.tobuf(tarfile.PAX_FORMAT)
        elif stat.S_ISREG(info.st_mode):
            yield from _pack_file(path, entry)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _pack_file(path: Path, entry: tarfile.TarInfo) -> Iterator[bytes]:
    with path.open("rb") as file:
        entry.size = left = os.fstat(file.fileno()).st_size
        yield entry.tobuf(tarfile.PAX_FORMAT)
        while left > 0:
            # A file that shrinks while it is read is filled up: the header has promised its size.
            piece = file.read(min(PIECE_BYTES, left)) or bytes(min(PIECE_BYTES, left))
            left -= len(piece)
            yield piece
    yield bytes(-entry.size % tarfile.BLOCKSIZE)


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            path = Path(place, name)
            if not path.is_symlink():
                yield path


def unpack(archive: IO[bytes], target: Path) -> Transfer:
    """The archive's files and folders as `target`, merged into it where it exists. Links in it are skipped and reported."""
    target = target.absolute()
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InvalidArgument(f"{target} is in the way: it is no folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".belljar-", dir=target.parent))
    try:
        done = _unpack(archive, work)
        _put(work, target)
    except tarfile.TarError as problem:
        raise Lost(f"what the sandbox sent is no tar archive: {problem}") from problem
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return done


def temporary_beside(target: Path) -> IO[bytes]:
    """A file without a name on the disk where `target` will be: the usual place for such files may be in memory."""
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=target.absolute().parent)


def _unpack(archive: IO[bytes], work: Path) -> Transfer:
    files = size = 0
    skipped: list[str] = []
    bounded: Any = _Bounded(archive)
    with tarfile.open(fileobj=bounded, mode="r:", errorlevel=2) as tar:
        count = 0
        while (entry := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or every header would be kept
            count += 1
            if count > MAX_ENTRIES:
                raise Lost(f"the archive has more than {MAX_ENTRIES} entries")
            parts = _parts(entry.name)
            if parts is None or not (entry.isdir() or entry.isreg()) or entry.issparse():
                skipped.append(entry.name[:4096])
            elif entry.isdir():
                work.joinpath(*parts).mkdir(parents=True, exist_ok=True)
            elif parts:
                size += _write(tar, entry, work.joinpath(*parts))
                files += 1
    return Transfer(files, size, tuple(skipped))


def _parts(name: str) -> list[str] | None:
    """A name's parts; None for one that leads elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    odd = name.startswith("/") or "\0" in name or "\\" in name or any(part == ".." or ":" in part[1:2] for part in parts)
    return None if odd or any(len(os.fsencode(part)) > 255 for part in parts) else parts


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> int:
    source = tar.extractfile(entry)
    assert source is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an archive may name a file twice; the last one counts
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, PIECE_BYTES)
        if file.tell() != entry.size:
            raise Lost("the archive ended in the middle of a file")
    path.chmod(0o755 if entry.mode & 0o100 else 0o644)
    with suppress(OSError, OverflowError, ValueError):
        os.utime(path, (entry.mtime, entry.mtime))
    return entry.size


def _put(work: Path, target: Path) -> None:
    """Rename what was unpacked into place. A link that is already there is never followed."""
    if not target.exists():
        work.chmod(0o755)
        work.rename(target)
        return
    for place, folders, files in os.walk(work):
        goal = target / Path(place).relative_to(work)
        for name in folders:
            below = goal / name
            if below.is_symlink() or (below.exists() and not below.is_dir()):
                raise InvalidArgument(f"{below} is in the way: it is no folder of its own")
            below.mkdir(exist_ok=True)
        for name in files:
            if (goal / name).is_dir() and not (goal / name).is_symlink():
                raise InvalidArgument(f"{goal / name} is in the way: it is a folder")
            Path(place, name).replace(goal / name)


class _Bounded:
    """A file whose reads are small: tarfile reads headers in one piece, however long they say they are."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)
