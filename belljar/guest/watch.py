"""file.watch: changes under a folder, as the kernel reports them (inotify). Nothing is polled."""

from __future__ import annotations

import asyncio
import os
import struct
from typing import Any, Final

from belljar.guest.accounts import Account
from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.params import Params
from belljar.guest.syscalls import inotify_add_watch, inotify_init

_MODIFY: Final = 0x2
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_IS_DIR: Final = 0x40000000
_ONLY_DIR: Final = 0x1000000
_MASK: Final = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF

_EVENT: Final = struct.Struct("iIII")
_READ_SIZE: Final = 64 * 1024
_MAX_WATCHES: Final = 8192

Change = dict[str, Any]


class Watch:
    """One inotify descriptor and the folders it watches."""

    def __init__(self, path: str, recursive: bool) -> None:
        self._recursive = recursive
        self._folders: dict[int, str] = {}
        self.fd = inotify_init()
        try:
            root = inotify_add_watch(self.fd, path, _MASK)
        except OSError:
            os.close(self.fd)
            raise
        self._folders[root] = path
        if recursive:
            self._add_below(path, [])

    def _add_below(self, folder: str, found: list[Change]) -> None:
        """Watch every folder in `folder`, and note what is there: it may have come before we watched."""
        pending = [folder]
        while pending:
            try:
                with os.scandir(pending.pop()) as scan:
                    items = [(item.path, item.is_dir(follow_symlinks=False)) for item in scan]
            except OSError:
                continue
            for path, is_folder in items:
                found.append({"type": "created", "path": path})
                if is_folder and self._add(path, found):
                    pending.append(path)

    def _add(self, path: str, found: list[Change]) -> bool:
        try:
            if len(self._folders) >= _MAX_WATCHES:
                raise OSError
            self._folders[inotify_add_watch(self.fd, path, _MASK | _ONLY_DIR)] = path
        except OSError:
            found.append({"type": "overflow", "path": path})  # from here on changes below are missed
            return False
        return True

    def read(self) -> list[Change]:
        """What has changed since the last time."""
        try:
            data = os.read(self.fd, _READ_SIZE)
        except BlockingIOError:
            return []
        changes: list[Change] = []
        moves: dict[int, Change] = {}
        start = 0
        while start < len(data):
            watch, mask, cookie, length = _EVENT.unpack_from(data, start)
            name = data[start + _EVENT.size : start + _EVENT.size + length].rstrip(b"\0")
            start += _EVENT.size + length
            self._translate(watch, mask, cookie, os.fsdecode(name), changes, moves)
        return changes

    def _translate(self, watch: int, mask: int, cookie: int, name: str, changes: list[Change], moves: dict[int, Change]) -> None:
        folder = self._folders.get(watch)
        if mask & _OVERFLOW or folder is None:
            if mask & _OVERFLOW:
                changes.append({"type": "overflow", "path": next(iter(self._folders.values()), "/")})
            return
        path = f"{folder.rstrip('/')}/{name}" if name else folder
        if mask & _IGNORED:
            del self._folders[watch]
        elif mask & _MOVED_FROM:
            moves[cookie] = {"type": "removed", "path": path}  # until the other half turns up
            changes.append(moves[cookie])
        elif mask & _MOVED_TO and cookie in moves:
            change = moves.pop(cookie)
            change.update({"type": "moved", "from": change["path"], "path": path})
            self._rename_folders(change["from"], path)
        elif mask & (_CREATE | _MOVED_TO):
            changes.append({"type": "created", "path": path})
            if mask & _IS_DIR and self._recursive and self._add(path, changes):
                self._add_below(path, changes)
        elif mask & _DELETE or (mask & _DELETE_SELF and watch == min(self._folders)):
            changes.append({"type": "removed", "path": path})
        elif mask & _MODIFY and (change := {"type": "modified", "path": path}) not in changes[-1:]:
            changes.append(change)

    def _rename_folders(self, old: str, new: str) -> None:
        for watch, path in self._folders.items():
            if path == old or path.startswith(f"{old}/"):
                self._folders[watch] = new + path[len(old) :]

    def close(self) -> None:
        os.close(self.fd)


async def watch(context: Context, channel: Channel, params: Params) -> None:
    path, account = context.resolve(params.path("path")), context.account(params)
    watcher = await context.workers.run(account, Watch, path, params.flag("recursive"))
    try:
        await channel.send_message({"watching": True})
        await _report(context, channel, account, watcher)
    finally:
        watcher.close()


async def _report(context: Context, channel: Channel, account: Account, watcher: Watch) -> None:
    """Until the host leaves. A host that does not read stops us reading, and the kernel then says that it dropped events."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    channel.on_left = lambda by_host: news.set()
    while channel.open:
        news.clear()
        loop.add_reader(watcher.fd, news.set)
        try:
            await news.wait()
        finally:
            loop.remove_reader(watcher.fd)
        for change in await context.workers.run(account, watcher.read):
            await channel.send_message({"event": change})


OPERATIONS: Final = {"file.watch": watch}
