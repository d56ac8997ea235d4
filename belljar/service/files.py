"""Files of a sandbox, where a server needs more than the sandbox's own calls: bytes that outlive the call, links followed."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from belljar.errors import InvalidInput
from belljar.fleet.files import FileEntry, FileEvent
from belljar.fleet.sandbox import Sandbox
from belljar.service.workspace import Workspace

MAX_LINKS = 40


async def open_file(
    workspace: Workspace,
    sandbox_id: str,
    path: str,
    *,
    offset: int = 0,
    length: int | None = None,
    user: str | None = None,
) -> AsyncGenerator[bytes, None]:
    """The bytes of a file. What is wrong with it is raised here, before the first byte is passed on."""
    return await opened(_read(workspace, sandbox_id, path, offset, length, user))


async def _read(
    workspace: Workspace, sandbox_id: str, path: str, offset: int, length: int | None, user: str | None
) -> AsyncGenerator[bytes, None]:
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(workspace.guest(sandbox_id, "stream"))
        source = sandbox.files.read_stream(path, offset=offset, length=length, user=user)
        async for piece in await stack.enter_async_context(aclosing(source)):
            yield piece


async def opened(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same bytes, the first of them already there: what is wrong from the start is raised here."""
    try:
        first = await anext(pieces, b"")
    except BaseException:
        await pieces.aclose()
        raise

    async def all_pieces() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            if first:
                yield first
            async for piece in pieces:
                yield piece

    return all_pieces()


async def stat_target(workspace: Workspace, sandbox_id: str, path: str, *, user: str | None = None) -> FileEntry:
    async with workspace.guest(sandbox_id) as sandbox:
        return await find_target(sandbox, path, user=user)


async def find_target(sandbox: Sandbox, path: str, *, user: str | None = None) -> FileEntry:
    """What a path leads to: links are followed, and the name stays the one that was asked for."""
    entry = found = await sandbox.files.stat(path, user=user)
    for _ in range(MAX_LINKS):
        if found.type != "symlink" or found.target is None:
            return replace(found, name=entry.name, path=entry.path)
        # Not normalised: what ".." means behind a link is for the guest to say.
        path = posixpath.join(posixpath.dirname(path), found.target)
        found = await sandbox.files.stat(path, user=user)
    raise InvalidInput("there are too many symbolic links on this path")


async def watch(
    workspace: Workspace, sandbox_id: str, path: str, *, recursive: bool, user: str | None = None
) -> AsyncGenerator[FileEvent | None, None]:
    """None once the path is watched, and then its changes as they happen."""
    async with (
        workspace.guest(sandbox_id, "stream") as sandbox,
        sandbox.files.watch(path, recursive=recursive, user=user) as changes,
    ):
        yield None
        async for change in changes:
            yield change
