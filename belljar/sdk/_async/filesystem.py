"""The files of one sandbox. Contents stream, so size is bounded by disks and not by memory."""

from __future__ import annotations

import os
import secrets
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from belljar.errors import NotADirectory
from belljar.sdk._async.adaptors import Content, Flow, call, in_thread, pieces_of
from belljar.sdk._async.streaming import AsyncStream
from belljar.sdk.errors import NotFoundError
from belljar.sdk.progress import MAX_DOWNLOAD_BYTES, Meter, Progress
from belljar.sdk.requests import MACHINE_S, GuestPath, guest_path, route
from belljar.sdk.streams import StreamEvent
from belljar.sdk.tarring import folder_bytes, pack, temporary_beside, unpack
from belljar.sdk.values import FileChange, FileInfo, Transfer

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient


class AsyncSandboxFilesystem:
    """Paths are the guest's: absolute, or relative to the template's folder. `user` is whose rights are used."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._transport = client.transport
        self._timeout = max(client.timeout, MACHINE_S)
        self._path = route("sandboxes", sandbox_id, "fs")

    async def read(
        self, path: GuestPath, *, offset: int | None = None, length: int | None = None, user: str | None = None
    ) -> bytes:
        """The whole file, or `length` bytes from `offset` on."""
        params = {"path": path, "offset": offset, "length": length, "user": user}
        return (await self._transport.send("GET", self._path, params=params, timeout=self._timeout)).content

    def read_stream(
        self, path: GuestPath, *, offset: int | None = None, length: int | None = None, user: str | None = None
    ) -> AsyncStream[bytes]:
        """The same as it arrives."""
        return AsyncStream(self._read({"path": path, "offset": offset, "length": length, "user": user}))

    async def _read(self, params: dict[str, Any], what: str = "") -> Flow[bytes]:
        async with self._transport.stream("GET", self._path + what, params=params, silence_s=self._timeout) as pieces:
            async for piece in pieces:
                yield piece

    async def write(
        self, path: GuestPath, content: Content, *, mode: int | None = None, append: bool = False, user: str | None = None
    ) -> dict[str, Any]:
        """Create or replace a file, with its parent folders, from bytes, text, an open file or an iterable of either."""
        params = {
            "path": path,
            "mode": f"{mode:04o}" if mode is not None else None,
            "append": "1" if append else None,
            "user": user,
        }
        return await self._transport.object("PUT", self._path, params=params, content=content, timeout=self._timeout)

    async def listdir(self, path: GuestPath = "/", *, depth: int = 1, user: str | None = None) -> list[FileInfo]:
        params = {"path": path, "depth": depth if depth != 1 else None, "user": user}
        found = await self._transport.object("GET", f"{self._path}/dir", params=params, timeout=self._timeout)
        return [FileInfo.from_dict(item, parent=guest_path(path)) for item in found.get("entries") or []]

    async def stat(self, path: GuestPath, *, user: str | None = None) -> FileInfo:
        """Of what the path leads to."""
        place = guest_path(path)
        found = await self._transport.object("GET", f"{self._path}/stat", params={"path": place, "user": user})
        name = place.rstrip("/").rpartition("/")[2]
        return FileInfo.from_dict({**found, "name": found.get("name") or name, "path": place})

    async def exists(self, path: GuestPath, *, user: str | None = None) -> bool:
        try:
            await self.stat(path, user=user)
        except (NotFoundError, NotADirectory):
            return False
        return True

    async def walk(self, path: GuestPath = "/") -> Flow[tuple[str, list[FileInfo], list[FileInfo]]]:
        """Folder by folder, from the top: (path, folders, files)."""
        pending = [guest_path(path)]
        while pending:
            place = pending.pop(0)
            entries = await self.listdir(place)
            folders = [entry for entry in entries if entry.is_dir]
            yield place, folders, [entry for entry in entries if not entry.is_dir]
            pending[:0] = [entry.path for entry in folders]

    async def mkdir(self, path: GuestPath, *, parents: bool = True, user: str | None = None) -> None:
        await self._change("mkdir", {"path": path, "parents": parents}, user)

    async def move(self, source: GuestPath, target: GuestPath, *, user: str | None = None) -> None:
        await self._change("move", {"source": source, "target": target}, user)

    async def copy(self, source: GuestPath, target: GuestPath, *, recursive: bool = False, user: str | None = None) -> None:
        await self._change("copy", {"source": source, "target": target, "recursive": recursive}, user)

    async def remove(self, path: GuestPath, *, recursive: bool = False, user: str | None = None) -> None:
        params = {"path": path, "recursive": "1" if recursive else None, "user": user}
        await self._transport.json("DELETE", self._path, params=params, timeout=self._timeout)

    def watch(self, path: GuestPath, *, recursive: bool = False, user: str | None = None) -> AsyncWatch:
        """Changes as they happen, from `async with` on."""
        params = {"path": path, "recursive": "1" if recursive else None, "user": user}
        return AsyncWatch(self._transport.events("GET", f"{self._path}/watch", params=params))

    async def upload(
        self, local_path: str | Path, remote_path: GuestPath, *, progress: Progress | bool = False, user: str | None = None
    ) -> dict[str, Any]:
        """Copy a file or a whole folder of this machine to exactly `remote_path`. Links inside a folder are left out.

        `progress` is called with the bytes done so far and in all; True shows a bar on the terminal.
        """
        local = Path(local_path)
        if not await in_thread(local.is_dir):
            size = (await in_thread(local.stat)).st_size
            with await in_thread(_open, local, "rb") as file:
                content = self._metered(file, Meter(progress, local.name, size))
                return await self.write(remote_path, content, mode=0o755 if os.access(local, os.X_OK) else None, user=user)
        meter = Meter(progress, local.name, await in_thread(folder_bytes, local))
        params = {"path": remote_path, "user": user}
        content = self._metered(pack(local), meter)
        await self._transport.json("PUT", f"{self._path}/tree", params=params, content=content, timeout=self._timeout)
        return {"path": guest_path(remote_path), "bytes": meter.done}

    async def download(
        self,
        remote_path: GuestPath,
        local_path: str | Path,
        *,
        progress: Progress | bool = False,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
        user: str | None = None,
    ) -> Transfer:
        """Copy a file or a whole folder of the sandbox to exactly `local_path`; folders on the way are made. Links inside
        a folder are skipped and reported.

        A sandbox that sends more than `max_bytes` is not read to its end.
        """
        local, info = Path(local_path), await self.stat(remote_path, user=user)
        if not info.is_dir:
            return await self._download_file(remote_path, local, Meter(progress, info.name, info.size, max_bytes), user)
        meter = Meter(progress, info.name, None, max_bytes)
        source = self._metered(self._read({"path": remote_path, "user": user}, "/tree"), meter)
        with await in_thread(temporary_beside, local) as archive:
            await _save(source, archive)
            return await in_thread(unpack, archive, local)

    async def _download_file(self, remote: GuestPath, local: Path, meter: Meter, user: str | None) -> Transfer:
        """Beside its place first, so that a download that breaks off leaves what was there."""
        part = local.with_name(f".belljar-{secrets.token_hex(8)}.part")
        await in_thread(lambda: local.absolute().parent.mkdir(parents=True, exist_ok=True))
        try:
            with await in_thread(_open, part, "xb") as file:
                await _save(self._metered(self._read({"path": remote, "user": user}), meter), file)
            await in_thread(part.replace, local)
        finally:
            await in_thread(lambda: part.unlink(missing_ok=True))
        return Transfer(1, meter.done)

    async def _metered(self, content: Content, meter: Meter) -> Flow[bytes]:
        async with aclosing(pieces_of(content)) as pieces:
            async for piece in pieces:
                told = meter.count(len(piece))
                yield piece
                if told is not None:
                    await call(meter.tell, *told)
        await call(meter.tell, meter.done, meter.done)

    async def _change(self, action: str, body: dict[str, Any], user: str | None) -> None:
        body |= {"user": user} if user is not None else {}
        await self._transport.json("POST", f"{self._path}/{action}", body, timeout=self._timeout)


def _open(path: Path, mode: str) -> IO[bytes]:
    return cast(IO[bytes], path.open(mode))


async def _save(source: Flow[bytes], file: IO[bytes]) -> None:
    async with aclosing(source) as pieces:
        async for piece in pieces:
            await in_thread(file.write, piece)
    await in_thread(file.flush)
    file.seek(0)


class AsyncWatch(AsyncStream[FileChange]):
    """Changes under one path. Once `async with` has been entered, none is missed."""

    def __init__(self, events: Flow[StreamEvent]) -> None:
        self._events = events
        super().__init__(self._changes())

    async def __aenter__(self) -> AsyncWatch:
        await anext(self._events)  # "watching"
        return self

    async def _changes(self) -> Flow[FileChange]:
        async for event in self._events:
            if event.name == "change":
                yield FileChange.from_dict(event.data)

    async def aclose(self) -> None:
        await super().aclose()
        await self._events.aclose()
