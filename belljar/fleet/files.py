"""The files of one sandbox. Contents move in pieces, so size is bounded by disks and not by memory.

Paths are the guest's: absolute, or relative to its default folder. Every call acts with the rights of `user`, which is the
template's ordinary user unless said otherwise.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.errors import AgentProtocol, Conflict, DeadlineExceeded, FileMissing, InvalidInput, NotADirectory
from belljar.fleet import transfer
from belljar.fleet.answers import MAX_SIZE, Answer
from belljar.fleet.checks import check_path, check_user, check_whole
from belljar.fleet.process import ANSWER_DEADLINE_S, LinkProvider, first_message, next_event
from belljar.vm.link import Channel, Data, Message

MAX_READ_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_DEPTH = 1000
PIECE_BYTES = 256 * 1024
# Copying or removing a large tree is one request whose answer comes at the end.
TREE_DEADLINE_S = 900.0

Content = bytes | bytearray | memoryview | str | AsyncIterable[bytes] | Iterable[bytes]


@dataclass(frozen=True)
class FileEntry:
    """A file, folder or link as the guest reports it. `target` is where a symlink points."""

    name: str
    path: str
    type: str
    size: int
    mode: int
    mtime_ns: int
    owner: str
    group: str
    target: str | None = None


@dataclass(frozen=True)
class FileEvent:
    """A change under a watched path. `source` is the old path of something moved; `overflow` means that events were lost."""

    type: str
    path: str
    source: str | None = None


class Files:
    """The files of one sandbox. `links` attaches to the guest when a call first needs it."""

    def __init__(self, links: LinkProvider) -> None:
        self._links = links

    async def read(self, path: str, *, user: str | None = None, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The whole file, if it has at most `max_bytes`."""
        check_whole(max_bytes, "max_bytes", 0, MAX_SIZE)
        content = bytearray()
        # One byte more than wanted tells a file that is too large from one that fits, whatever size the guest claims.
        async with aclosing(self.read_stream(path, length=max_bytes + 1, user=user)) as pieces:
            async for piece in pieces:
                content += piece
        if len(content) > max_bytes:
            raise InvalidInput(f"{path} has more than {max_bytes} bytes; use read_stream or download, or raise max_bytes")
        return bytes(content)

    async def read_stream(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes from `offset` on, `length` of them at most, as they arrive."""
        params = _params(user, path=check_path(path), offset=check_whole(offset, "offset", 0, MAX_SIZE))
        if length is not None:
            params["length"] = check_whole(length, "length", 0, MAX_SIZE)
        left = MAX_SIZE if length is None else length
        async with await (await self._links()).open("file.read", params) as channel:
            await first_message(channel, "read")
            while (event := await next_event(channel, "more of a file")) is not None:
                if not isinstance(event, Data) or event.stream != 1 or len(event.data) > left:
                    raise AgentProtocol("the guest sent something else than the bytes that were asked for")
                left -= len(event.data)
                yield event.data
            channel.end()

    async def write(
        self, path: str, data: Content, *, mode: int | None = None, append: bool = False, user: str | None = None
    ) -> int:
        """Create or replace the file (or `append`), with its parent folders; returns how many bytes were written.

        A reader of the path sees the old content or the new, never half of it, and a write that fails leaves the old.
        """
        params = _params(user, path=check_path(path), append=append)
        if mode is not None:
            params["mode"] = check_whole(mode, "mode", 0, 0o7777)
        pieces = _pieces(data)
        async with await (await self._links()).open("file.write", params) as channel:
            sent = 0
            async for piece in pieces:
                await _send(channel, piece)
                sent += len(piece)
            channel.end()
            written = (await first_message(channel, "write")).whole("bytes")
            await next_event(channel, "the end of a write")
        if written != sent:
            raise AgentProtocol(f"the guest says that it wrote {written} bytes of {sent}")
        return written

    async def scan(self, path: str, *, depth: int = 1, user: str | None = None) -> AsyncGenerator[FileEntry, None]:
        """What is in a folder, as it is found; `depth` 1 is the folder itself, without those below."""
        params = _params(user, path=check_path(path), depth=check_whole(depth, "depth", 1, MAX_DEPTH))
        async with await (await self._links()).open("file.list", params) as channel:
            while (event := await next_event(channel, "more of a folder")) is not None:
                if not isinstance(event, Message):
                    raise AgentProtocol("the guest sent bytes where a list of files was due")
                for item in Answer(event.body, "list of files").objects("entries"):
                    yield parse_entry(item)
            channel.end()

    async def list(self, path: str, *, depth: int = 1, user: str | None = None) -> builtins.list[FileEntry]:
        entries: builtins.list[FileEntry] = []
        async with aclosing(self.scan(path, depth=depth, user=user)) as found:
            async for entry in found:
                if len(entries) == MAX_ENTRIES:
                    raise InvalidInput(f"{path} has more than {MAX_ENTRIES} entries; use scan, or a smaller depth")
                entries.append(entry)
        return entries

    async def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Of the path itself: a symlink is not followed."""
        return parse_entry(Answer(await self._ask("file.stat", _params(user, path=check_path(path))), "stat"))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        try:
            await self.stat(path, user=user)
        except (FileMissing, NotADirectory):
            return False
        return True

    async def mkdir(self, path: str, *, parents: bool = True, user: str | None = None) -> None:
        await self._ask("file.mkdir", _params(user, path=check_path(path), parents=parents))

    async def move(self, source: str, target: str, *, user: str | None = None) -> None:
        params = _params(user, source=check_path(source, "source"), target=check_path(target, "target"))
        await self._ask("file.move", params, TREE_DEADLINE_S)

    async def copy(self, source: str, target: str, *, recursive: bool = False, user: str | None = None) -> None:
        params = _params(user, source=check_path(source, "source"), target=check_path(target, "target"), recursive=recursive)
        await self._ask("file.copy", params, TREE_DEADLINE_S)

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        await self._ask("file.remove", _params(user, path=check_path(path), recursive=recursive), TREE_DEADLINE_S)

    def watch(self, path: str, *, recursive: bool = False, user: str | None = None) -> Watch:
        """Changes as they happen: from `async with` on, or where it is only iterated, from the first step."""
        return Watch(self._links, _params(user, path=check_path(path), recursive=recursive))

    async def upload(self, local: Path, remote: str, *, user: str | None = None) -> transfer.Transfer:
        """Copy a file or folder of the host to exactly `remote`. Symlinks inside a folder are skipped and reported."""
        return await transfer.upload(self, Path(check_path(local, "local path")), check_path(remote, "remote path"), user)

    async def download(
        self, remote: str, local: Path, *, user: str | None = None, max_bytes: int = transfer.MAX_DOWNLOAD_BYTES
    ) -> transfer.Transfer:
        """Copy a file or folder of the guest to exactly `local`. Symlinks inside a folder are skipped and reported."""
        check_whole(max_bytes, "max_bytes", 0, MAX_SIZE)
        target = Path(check_path(local, "local path"))
        return await transfer.download(self, check_path(remote, "remote path"), target, user, max_bytes)

    async def _ask(self, op: str, params: dict[str, Any], deadline_s: float = ANSWER_DEADLINE_S) -> dict[str, Any]:
        return await (await self._links()).request(op, params, deadline_s)


class Watch:
    """Changes under one path, until it is closed or the loop over it is left."""

    def __init__(self, links: LinkProvider, params: dict[str, Any]) -> None:
        self._links = links
        self._params = params
        self._channel: Channel | None = None

    async def __aenter__(self) -> Watch:
        if self._channel is not None:
            raise Conflict("this watch is open already; make another for a second reader")
        channel = await (await self._links()).open("file.watch", self._params)
        self._channel = channel
        try:
            (await first_message(channel, "watch")).flag("watching")
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        if self._channel is None:
            await self.__aenter__()
        try:
            while self._channel is not None and (event := await self._channel.receive()) is not None:
                if not isinstance(event, Message):
                    raise AgentProtocol("the guest sent bytes where changes of files were due")
                yield _parse_event(Answer(event.body, "change").object("event"))
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()


def parse_entry(item: Answer) -> FileEntry:
    return FileEntry(
        name=item.text("name"),
        path=item.text("path"),
        type=item.one_of("type", "file", "dir", "symlink", "other"),
        size=item.whole("size"),
        mode=item.whole("mode", 0, 0o177777),
        mtime_ns=item.whole("mtime_ns", -MAX_SIZE),
        owner=item.text("owner"),
        group=item.text("group"),
        target=item.optional_text("target"),
    )


def _parse_event(item: Answer) -> FileEvent:
    kind = item.one_of("type", "created", "modified", "removed", "moved", "overflow")
    return FileEvent(kind, item.text("path"), item.optional_text("from"))


def _params(user: str | None, **params: Any) -> dict[str, Any]:
    return params if user is None else {**params, "user": check_user(user)}


async def _send(channel: Channel, piece: bytes) -> None:
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await channel.send(piece)
    except TimeoutError:
        raise DeadlineExceeded(f"the guest has taken no more of a file for {ANSWER_DEADLINE_S:.0f} s") from None


def _pieces(data: Content) -> AsyncIterator[bytes]:
    """Any content as pieces of bounded size; judged here, before a file is opened in the guest."""
    if isinstance(data, str):
        return _split([data.encode("utf-8", "surrogateescape")])
    if isinstance(data, bytes | bytearray | memoryview):
        return _split([data])
    if isinstance(data, AsyncIterable):
        return _split_async(data)
    if isinstance(data, Iterable):
        return _split(data)
    raise InvalidInput(f"data must be bytes, text or an iterable of bytes, not {type(data).__name__}")


async def _split(chunks: Iterable[object]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        for piece in _cut(chunk):
            yield piece


async def _split_async(chunks: AsyncIterable[object]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for piece in _cut(chunk):
            yield piece


def _cut(chunk: object) -> Iterable[bytes]:
    if not isinstance(chunk, bytes | bytearray | memoryview):
        raise InvalidInput(f"data must yield bytes, not {type(chunk).__name__}")
    view = memoryview(chunk).cast("B")
    return (bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(view), PIECE_BYTES))
