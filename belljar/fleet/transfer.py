"""Files and folders between the host and a guest.

Downloading is where a guest could reach out: it chooses names and contents, and the host writes them. So a name is one path
component or the download ends; symlinks of the guest are never made or followed; folders below the target are opened one
component at a time without following the host's own symlinks; modes keep only "executable"; and a file appears under its name
when it is complete.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.errors import (
    AgentProtocol,
    AlreadyExists,
    FileDenied,
    FileMissing,
    HostDiskShort,
    HostError,
    InvalidInput,
    NotADirectory,
)
from belljar.vm.finishing import in_thread

if TYPE_CHECKING:
    from belljar.fleet.files import FileEntry, Files

MAX_DOWNLOAD_BYTES = 64 * 1024**3
MAX_TREE_ENTRIES = 1_000_000
READ_BYTES = 1024 * 1024
IN_THE_WAY = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Skipped:
    """Something inside a folder that was not copied."""

    path: str
    reason: str


@dataclass(frozen=True)
class Transfer:
    """What was copied, and what was not."""

    files: int
    bytes: int
    skipped: tuple[Skipped, ...] = ()


class _Tally:
    """Counts while a tree is copied, and ends a copy that has no end."""

    def __init__(self, max_bytes: int) -> None:
        self._left, self._max_bytes = max_bytes, max_bytes
        self.files = self.entries = 0
        self.skipped: list[Skipped] = []

    def entry(self, path: str) -> None:
        self.entries += 1
        if self.entries > MAX_TREE_ENTRIES:
            raise InvalidInput(f"{path} holds more than {MAX_TREE_ENTRIES} files; pack them into an archive and copy that")

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise InvalidInput(f"more than {self._max_bytes} bytes would be downloaded; raise max_bytes if that is meant")

    def skip(self, path: str, reason: str) -> None:
        self.skipped.append(Skipped(path, reason))

    def result(self) -> Transfer:
        return Transfer(self.files, self._max_bytes - self._left, tuple(self.skipped))


async def upload(files: Files, local: Path, remote: str, user: str | None) -> Transfer:
    tally = _Tally(max_bytes=2**63 - 1)
    with _local_errors(local):
        is_folder = stat.S_ISDIR(local.stat().st_mode)
    if not is_folder:
        await _upload_file(files, local, remote, user, tally)
        return tally.result()
    pending = [(local, remote)]
    while pending:
        folder, target = pending.pop()
        await files.mkdir(target, user=user)
        for entry in await asyncio.to_thread(_local_entries, folder):
            path, goal = folder / entry.name, f"{target.rstrip('/')}/{entry.name}"
            tally.entry(str(local))
            if entry.is_dir(follow_symlinks=False):
                pending.append((path, goal))
            elif entry.is_file(follow_symlinks=False):
                await _upload_file(files, path, goal, user, tally)
            else:
                tally.skip(str(path), "symlink" if entry.is_symlink() else "neither file nor folder")
    return tally.result()


async def _upload_file(files: Files, local: Path, remote: str, user: str | None, tally: _Tally) -> None:
    with _local_errors(local):
        # Without O_NONBLOCK a named pipe would hold up the whole loop until somebody writes to it.
        fd = os.open(local, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"{local} is neither a file nor a folder")
        written = await files.write(remote, _read_pieces(fd, local), mode=stat.S_IMODE(mode) & 0o777, user=user)
    finally:
        os.close(fd)
    tally.take(written)
    tally.files += 1


async def _read_pieces(fd: int, local: Path) -> AsyncIterator[bytes]:
    while True:
        with _local_errors(local):
            piece = await in_thread(os.read, fd, READ_BYTES)
        if not piece:
            return
        yield piece


def _local_entries(folder: Path) -> list[os.DirEntry[str]]:
    with _local_errors(folder), os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)


async def download(files: Files, remote: str, local: Path, user: str | None, max_bytes: int) -> Transfer:
    tally = _Tally(max_bytes)
    folder = await _find_folder(files, remote, user)
    if folder is None:
        with _local_errors(local), _folder(local.parent) as parent:
            executable = bool((await files.stat(remote, user=user)).mode & 0o100)
            await _download_file(files, remote, parent, local.name, executable, user, tally)
    else:
        with _local_errors(local):
            local.mkdir(exist_ok=True)
        await _download_tree(files, folder, local, user, tally)
    return tally.result()


async def _find_folder(files: Files, remote: str, user: str | None) -> str | None:
    """The path to list if `remote` is a folder. A link that the caller named is followed, unlike those found inside."""
    entry = await files.stat(remote, user=user)
    if entry.type == "symlink":
        inside = f"{remote.rstrip('/')}/."
        try:
            return inside if (await files.stat(inside, user=user)).type == "dir" else None
        except (NotADirectory, FileMissing):
            return None
    return remote if entry.type == "dir" else None


async def _download_tree(files: Files, remote: str, local: Path, user: str | None, tally: _Tally) -> None:
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        source = "/".join((remote.rstrip("/"), *parts)) or "/"
        with _local_errors(local.joinpath(*parts)), _folder(local, parts) as folder:
            try:
                async with aclosing(files.scan(source, user=user)) as entries:
                    async for entry in entries:
                        tally.entry(remote)
                        if entry.type == "dir":
                            pending.append((*parts, _check_name(entry)))
                        else:
                            await _download_found(files, source, folder, entry, user, tally)
            except (FileMissing, FileDenied, NotADirectory) as error:
                if not parts:
                    raise
                tally.skip(source, error.message)


async def _download_found(files: Files, source: str, folder: int, entry: FileEntry, user: str | None, tally: _Tally) -> None:
    """Something inside a tree that is no folder. The tree is alive: a file that is gone or closed to us by now is skipped."""
    name = _check_name(entry)
    path = f"{source.rstrip('/')}/{name}"
    if entry.type != "file":
        tally.skip(path, "symlink" if entry.type == "symlink" else "neither file nor folder")
        return
    try:
        await _download_file(files, path, folder, name, bool(entry.mode & 0o100), user, tally)
    except (FileMissing, FileDenied) as error:
        tally.skip(path, error.message)


async def _download_file(
    files: Files, remote: str, folder: int, name: str, executable: bool, user: str | None, tally: _Tally
) -> None:
    part = f".belljar-{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(part, flags, 0o777 if executable else 0o666, dir_fd=folder)
    try:
        try:
            async with aclosing(files.read_stream(remote, user=user)) as pieces:
                async for piece in pieces:
                    tally.take(len(piece))
                    await in_thread(_write_all, fd, piece)
        finally:
            os.close(fd)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        raise
    tally.files += 1


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _check_name(entry: FileEntry) -> str:
    name = entry.name
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        size = 0
    if name in ("", ".", "..") or "/" in name or "\0" in name or not 0 < size <= 255:
        raise AgentProtocol(f"the guest named a file {name[:80]!r}, which no folder can hold")
    return name


@contextmanager
def _folder(root: Path, parts: tuple[str, ...] = ()) -> Iterator[int]:
    """A descriptor of root/parts. Folders below the root are made when missing, and none of them may be a symlink."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(root, flags)
    try:
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=fd)
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    """The host's file system speaks OSError; callers get ours, which say that it was the host's side."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise HostDiskShort(f"no space left on this host for {path}") from error
        if error.errno in IN_THE_WAY:
            raise AlreadyExists(f"something on this host is in the way of {path}: {error.strerror}") from error
        if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EROFS):
            raise InvalidInput(f"cannot use {path} on this host: {error.strerror}") from error
        raise HostError(f"{path} on this host: {error.strerror}") from error
