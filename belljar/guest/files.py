"""Reading and writing one file, of any size, in pieces that fit a worker's turn."""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH103, PTH104, PTH108, PTH116, PTH120

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import Any, Final

from belljar.guest.accounts import Account
from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.failure import Failure, from_os_error, invalid
from belljar.guest.params import Params
from belljar.wire.mux import WINDOW

_READ_SIZE: Final = 256 * 1024
_GATHER: Final = WINDOW // 2  # of input before a worker is asked to write it
_MAX_SIZE: Final = 1 << 62
_MODE: Final = 0o7777


# -- reading


async def read(context: Context, channel: Channel, params: Params) -> None:
    path, account = context.resolve(params.path("path")), context.account(params)
    offset = params.integer("offset", 0, 0, _MAX_SIZE)
    left = params.integer("length", _MAX_SIZE, 0, _MAX_SIZE)
    run = context.workers.run
    fd, status = await run(account, _open_to_read, path, offset)
    try:
        mode = stat.S_IMODE(status.st_mode)
        await channel.send_message({"size": status.st_size, "mode": mode, "mtime_ns": status.st_mtime_ns})
        # The descriptor carries the permission, so the rest needs no identity; but it may block, so it needs a worker.
        while left and (data := await run(_NOBODY_SPECIAL, _read_some, fd, min(left, _READ_SIZE))):
            left -= len(data)
            await channel.send(data)
        channel.end()
    finally:
        os.close(fd)


def _open_to_read(path: str, offset: int) -> tuple[int, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise Failure("is_a_directory", f"{path}: Is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise invalid(f"{path} is a pipe, socket or device: read it with a process")
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def _read_some(fd: int, size: int) -> bytes:
    """/proc and /sys hand out less than asked, and some of their files would block: those end here."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return b""


# -- writing


class _Target:
    """Where the bytes go: beside the file until they are all there, or into it when that is not possible or not wanted."""

    def __init__(self, path: str, account: Account, mode: int | None, append: bool, atomic: bool) -> None:
        self.path = path
        self.bytes = 0
        self._mode = mode
        self._temporary: str | None = None
        existing = self._look(path)
        parent = os.path.dirname(path)
        if existing is None:
            os.makedirs(parent, exist_ok=True)
        # Replacing a file gives it another owner and breaks its hard links: then it is written in place.
        replace = existing is None or (stat.S_ISREG(existing.st_mode) and existing.st_nlink == 1 and existing.st_uid == account.uid)
        if atomic and not append and replace:
            if self._mode is None and existing is not None:
                self._mode = stat.S_IMODE(existing.st_mode)
            try:
                temporary = f"{parent}/.belljar-{secrets.token_hex(8)}"
                self.fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                self._temporary = temporary
                return
            except OSError as error:
                if existing is None or error.errno == errno.ENOSPC:
                    raise
                # a file that may be written in a folder that takes no new ones: somebody else's, or /sys
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self.fd = os.open(path, flags | (os.O_APPEND if append else os.O_TRUNC), 0o666)

    @staticmethod
    def _look(path: str) -> os.stat_result | None:
        """The file as it is, or None. Raises what a plain write to it would raise, before anything is changed."""
        if path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ETXTBSY:  # it is running; it cannot be written, but it can be replaced
                return os.stat(path)
            raise
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]
        self.bytes += len(data)

    def finish(self) -> None:
        if self._mode is not None:
            os.fchmod(self.fd, self._mode)
        os.close(self.fd)
        self.fd = -1
        if self._temporary is not None:
            os.rename(self._temporary, self.path)
            self._temporary = None

    def abandon(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._temporary is not None:
            with suppress(OSError):
                os.unlink(self._temporary)


async def write(context: Context, channel: Channel, params: Params) -> dict[str, Any]:
    path, account = context.resolve(params.path("path")), context.account(params)
    mode = params.find_integer("mode", 0, _MODE)
    run = context.workers.run
    flags = params.flag("append"), params.flag("atomic", default=True)
    try:
        target = await run(account, _open_target, path, account, mode, *flags)
        try:
            while data := await channel.receive(_GATHER):
                await run(account, target.write, data)
            await run(account, target.finish)
        except BaseException:
            await run(account, target.abandon)
            raise
    except OSError as error:
        raise from_os_error(error, path) from None
    return {"path": path, "bytes": target.bytes}


def _open_target(path: str, account: Account, mode: int | None, append: bool, atomic: bool) -> _Target:
    # Through a symbolic link it is the file behind it that is written, not the link that is replaced.
    return _Target(os.path.realpath(path) + ("/" if path.endswith("/") else ""), account, mode, append, atomic)


_NOBODY_SPECIAL: Final = Account("root", 0, 0, (), "/", "")

OPERATIONS: Final = {"file.read": read, "file.write": write}
