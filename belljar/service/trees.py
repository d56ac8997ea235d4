"""Whole folders in and out of a sandbox as tar archives. The guest's own `tar` packs and unpacks, with the rights of the user.

A failure is told in tar's own words. Names that would lead out of the folder are refused by it.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress

from belljar.errors import (
    BelljarError,
    CommandNotFound,
    DeadlineExceeded,
    DiskFull,
    FileDenied,
    FileError,
    FileMissing,
    InvalidInput,
    NotSupported,
)
from belljar.fleet.process import Exit, Process
from belljar.fleet.sandbox import Sandbox
from belljar.service.files import find_target
from belljar.service.workspace import Workspace

# Of what tar says; a hostile archive could make it talk without end.
MAX_WORDS_BYTES = 8 * 1024
TAKES_NOTHING_S = 60.0
# A file that changed while it was read: what a folder that is in use looks like.
CHANGED = 1
# What tar's complaints mean, in the order in which they are looked for.
MEANINGS: tuple[tuple[str, type[BelljarError]], ...] = (
    ("No space left", DiskFull),
    ("Permission denied", FileDenied),
    ("Read-only file system", FileDenied),
    ("does not look like a tar archive", InvalidInput),
    ("Unexpected EOF", InvalidInput),
    ("contains '..'", InvalidInput),
    ("No such file", FileMissing),
)


async def pack(workspace: Workspace, sandbox_id: str, path: str, user: str | None = None) -> AsyncGenerator[bytes, None]:
    """A folder's content, or one file, as an archive."""
    async with workspace.guest(sandbox_id, "stream") as sandbox:
        entry = await find_target(sandbox, path, user=user)
        folder, name = (path, ".") if entry.type == "dir" else posixpath.split(path)
        words, held = bytearray(), b""
        async with await _tar(sandbox, ["-C", folder or ".", "-cf", "-", "--", name], user, stdin=False) as process:
            async for output in process:
                if output.stream == "stderr":
                    words += output.data[: MAX_WORDS_BYTES - len(words)]
                    continue
                if held:  # the last piece stays back until tar has ended well: a small archive then fails before it begins
                    yield held
                held = output.data
            _judge(await process.wait(), words, CHANGED)
            yield held


async def unpack(
    workspace: Workspace, sandbox_id: str, path: str, pieces: AsyncIterable[bytes], user: str | None = None
) -> None:
    """An archive into a folder. One that is not there appears when all of it was unpacked, or not at all. Into one that is there
    the archive is merged, and a failure leaves what was unpacked until then: only the guest's programs know what they replaced."""
    async with workspace.guest(sandbox_id) as sandbox:
        place = _beside(path) if not await sandbox.files.exists(path, user=user) else None
        if place is None:
            await sandbox.files.mkdir(path, user=user)
            await _unpack_into(sandbox, path, pieces, user)
            return
        await sandbox.files.mkdir(place, user=user)
        try:
            await _unpack_into(sandbox, place, pieces, user)
            await sandbox.files.move(place, path.rstrip("/"), user=user)
        except BaseException:
            with suppress(BelljarError):
                await sandbox.files.remove(place, recursive=True, user=user)
            raise


def _beside(path: str) -> str | None:
    """A new name in the same folder; None for a path that names no entry of a folder."""
    folder, name = posixpath.split(path.rstrip("/"))
    return posixpath.join(folder, f".{name[:40]}.{secrets.token_hex(6)}.part") if name not in ("", ".", "..") else None


async def _unpack_into(sandbox: Sandbox, folder: str, pieces: AsyncIterable[bytes], user: str | None) -> None:
    words = bytearray()
    async with await _tar(sandbox, ["-C", folder, "--no-same-owner", "-xf", "-"], user, stdin=True) as process:
        reading = asyncio.create_task(_listen(process, words))
        try:
            await _feed(process, pieces, reading)
            ended = await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        _judge(ended, words, 0)


async def _tar(sandbox: Sandbox, arguments: list[str], user: str | None, *, stdin: bool) -> Process:
    try:
        return await sandbox.processes.start(["tar", *arguments], user=user, stdin=stdin, env={"LC_ALL": "C"})
    except CommandNotFound:
        raise NotSupported("this sandbox has no `tar`, which packs and unpacks folders; move files one by one") from None


async def _listen(process: Process, words: bytearray) -> Exit:
    async for output in process:
        if output.stream == "stderr":
            words += output.data[: MAX_WORDS_BYTES - len(words)]
    return await process.wait()


async def _feed(process: Process, pieces: AsyncIterable[bytes], reading: asyncio.Task[Exit]) -> None:
    async for piece in pieces:
        try:
            async with asyncio.timeout(TAKES_NOTHING_S):
                await process.write(piece)
        except TimeoutError:
            raise DeadlineExceeded(f"the guest's tar has taken nothing for {TAKES_NOTHING_S:.0f} s") from None
        except BelljarError:
            return  # it has ended, or the sandbox has; the reader knows which
        if reading.done():
            return
    with suppress(BelljarError):
        await process.close_stdin()


def _judge(ended: Exit, words: bytearray, tolerated: int) -> None:
    if ended.exit_code is not None and ended.exit_code <= tolerated:
        return
    text = words.decode("utf-8", "replace").strip()
    kind = next((kind for sign, kind in MEANINGS if sign in text), FileError)
    raise kind(f"tar failed in the sandbox: {text[-2000:] or f'it ended with {ended.shell_code}'}")
