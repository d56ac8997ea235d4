"""Files of a sandbox, where a server needs more than the sandbox's own calls: bytes that outlive the call, links followed."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from belljar.errors import InvalidInput
from belljar.fleet.files import FileEntry
from belljar.service.workspace import Workspace

MAX_LINKS = 40


async def open_file(workspace: Workspace, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
    """The bytes of a file. What is wrong with it is raised here, before the first byte is passed on."""
    pieces = _read(workspace, sandbox_id, path)
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


async def _read(workspace: Workspace, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(workspace.guest(sandbox_id))
        pieces = await stack.enter_async_context(aclosing(sandbox.files.read_stream(path)))
        async for piece in pieces:
            yield piece


async def stat_target(workspace: Workspace, sandbox_id: str, path: str) -> FileEntry:
    """Of what a path leads to: links are followed, and the name stays the one that was asked for."""
    async with workspace.guest(sandbox_id) as sandbox:
        entry = found = await sandbox.files.stat(path)
        for _ in range(MAX_LINKS):
            if found.type != "symlink" or found.target is None:
                return replace(found, name=entry.name, path=entry.path)
            # Not normalised: what ".." means behind a link is for the guest to say.
            path = posixpath.join(posixpath.dirname(path), found.target)
            found = await sandbox.files.stat(path)
    raise InvalidInput("there are too many symbolic links on this path")
