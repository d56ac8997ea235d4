"""Operations on names and folders: list, stat, mkdir, move, copy, remove."""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH106, PTH108, PTH110, PTH115, PTH116, PTH121, PTH211

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Any, Final

from belljar.guest.channel import Channel, Lost
from belljar.guest.context import Context
from belljar.guest.entries import describe
from belljar.guest.failure import Failure, invalid
from belljar.guest.params import Params

_BATCH: Final = 256
_BATCH_SIZE: Final = 16 * 1024  # characters of names in a batch: escaped as JSON they still fit one message
_MAX_DEPTH: Final = 1000
_COPY_SIZE: Final = 256 * 1024


async def list_folder(context: Context, channel: Channel, params: Params) -> None:
    """Entries in the order in which the file system has them: a folder with a million names is never held in memory."""
    path, account = context.resolve(params.path("path")), context.account(params)
    entries = _walk(context, path, params.integer("depth", 1, 1, _MAX_DEPTH))
    while batch := await context.workers.run(account, _take_batch, entries):
        await channel.send_message({"entries": batch})
    channel.end()


def _walk(context: Context, path: str, depth: int) -> Iterator[dict[str, Any]]:
    folders = [(path, depth)]
    first = True
    while folders:
        folder, left = folders.pop()
        try:
            scan = os.scandir(folder)
        except OSError:
            if first:
                raise
            continue  # a folder below that is gone or closed to this user is listed, only not entered
        first = False
        with scan:
            for item in scan:
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed since
                yield describe(item.path, status, context.accounts)
                if left > 1 and stat.S_ISDIR(status.st_mode):
                    folders.append((item.path, left - 1))


def _take_batch(entries: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    batch: list[dict[str, Any]] = []
    size = 0
    while len(batch) < _BATCH and size < _BATCH_SIZE and (entry := next(entries, None)) is not None:
        batch.append(entry)
        size += len(entry["path"]) + len(entry["name"]) + len(entry.get("target") or "")
    return batch


async def stat_path(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    path, account = context.resolve(params.path("path")), context.account(params)
    return await context.workers.run(account, lambda: describe(path, os.lstat(path), context.accounts))


async def make_folder(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    path, account = context.resolve(params.path("path")), context.account(params)
    if params.flag("parents", default=True):
        await context.workers.run(account, _make_folders, path)
    else:
        await context.workers.run(account, os.mkdir, path)
    return {"path": path}


def _make_folders(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path) from None


async def move(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    source, target = context.resolve(params.path("source")), context.resolve(params.path("target"))
    await context.workers.run(context.account(params), _move, source, target, _watch_for_loss(channel))
    return {"path": target}


def _move(source: str, target: str, check: Callable[[], None]) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # an overlay says so for folders of the template, too
            blamed = target if error.errno in (errno.EEXIST, errno.ENOTEMPTY) else source
            raise OSError(error.errno, error.strerror, blamed) from None
        _copy(source, target, True, check)
        _remove(source, True)


async def copy(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    source, target = context.resolve(params.path("source")), context.resolve(params.path("target"))
    recursive = params.flag("recursive")
    await context.workers.run(context.account(params), _copy, source, target, recursive, _watch_for_loss(channel))
    return {"path": target}


def _watch_for_loss(channel: Channel) -> Callable[[], None]:
    """For a worker in the middle of something long: stop when nobody waits for it any more."""

    def check() -> None:
        if not channel.open:
            raise Lost

    return check


def _copy(source: str, target: str, recursive: bool, check: Callable[[], None]) -> None:
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode) and recursive:
        os.symlink(os.readlink(source), target)
        return
    if stat.S_ISLNK(status.st_mode):
        status = os.stat(source)
    if stat.S_ISREG(status.st_mode):
        _copy_file(source, target, status, check)
    elif not stat.S_ISDIR(status.st_mode):
        raise invalid(f"{source} is a pipe, socket or device, which cannot be copied")
    elif not recursive:
        raise Failure("is_a_directory", f"{source}: Is a directory; ask for a recursive copy")
    else:
        _copy_folder(source, target, status, check)


def _copy_folder(source: str, target: str, status: os.stat_result, check: Callable[[], None]) -> None:
    if f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(source)}/"):
        raise invalid(f"{source} cannot be copied or moved into itself")
    os.mkdir(target, 0o700)
    with os.scandir(source) as scan:
        for item in scan:
            check()
            _copy(item.path, f"{target}/{item.name}", True, check)
    _copy_status(target, status)


def _copy_file(source: str, target: str, status: os.stat_result, check: Callable[[], None]) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.path.exists(target) and os.path.samefile(source, target):
            raise invalid(f"{source} and {target} are the same file")
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            while data := os.read(reader, _COPY_SIZE):
                check()
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    _copy_status(target, status)


def _copy_status(target: str, status: os.stat_result) -> None:
    os.chmod(target, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


async def remove(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    path = context.resolve(params.path("path"))
    await context.workers.run(context.account(params), _remove, path, params.flag("recursive"))
    return {}


def _remove(path: str, recursive: bool) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif recursive:
        shutil.rmtree(path)  # walks by descriptors: a folder swapped for a symbolic link under way is not followed
    else:
        os.rmdir(path)


OPERATIONS: Final = {
    "file.list": list_folder,
    "file.stat": stat_path,
    "file.mkdir": make_folder,
    "file.move": move,
    "file.copy": copy,
    "file.remove": remove,
}
