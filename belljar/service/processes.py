"""Processes of a sandbox, as callers from afar need them: started and left alone, or followed step by step from any byte on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from belljar.errors import BelljarError, DeadlineExceeded, ProcessNotFound
from belljar.fleet.process import Dropped, Exit, Output, Process, PtySize
from belljar.fleet.processes import ProcessInfo
from belljar.service.logs import ProcessWriter, Stream
from belljar.service.running import check_limit
from belljar.service.workspace import Workspace

# A process that takes none of its input for so long is not waited for any longer.
TAKES_NOTHING_S = 60.0


@dataclass(frozen=True)
class Launch:
    """What is to be started, and how. A string is a line for the shell."""

    command: str | Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    user: str | None = None
    stdin: bool = False
    pty: PtySize | None = None
    timeout_s: float | None = None

    def options(self) -> dict[str, Any]:
        names = ("cwd", "env", "user", "stdin", "pty", "timeout_s")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Joined:
    """The first step: who is followed, and from which byte of each stream on. `dropped` bytes before it are no longer kept."""

    id: str
    pid: int
    stdout_offset: int
    stderr_offset: int
    dropped: Dropped


@dataclass(frozen=True)
class Piece:
    """Output, and the place of its first byte in its stream."""

    stream: Stream
    offset: int
    data: bytes


Step = Joined | Piece | Exit


async def start(workspace: Workspace, sandbox_id: str, launch: Launch) -> ProcessInfo:
    """In the background: it outlives its caller, and does not keep the sandbox awake."""
    if launch.timeout_s is not None:
        check_limit(workspace, launch.timeout_s)
    async with workspace.guest(sandbox_id) as sandbox:
        started = await sandbox.processes.start(launch.command, background=True, **launch.options())
        return _pick(await sandbox.processes.list(), started.id)


async def list_all(workspace: Workspace, sandbox_id: str) -> list[ProcessInfo]:
    async with workspace.guest(sandbox_id) as sandbox:
        return await sandbox.processes.list()


async def find(workspace: Workspace, sandbox_id: str, process_id: str) -> ProcessInfo:
    return _pick(await list_all(workspace, sandbox_id), process_id)


def _pick(processes: Sequence[ProcessInfo], process_id: str) -> ProcessInfo:
    for info in processes:
        if info.id == process_id:
            return info
    raise ProcessNotFound(f"there is no process {process_id[:80]!r}; it has ended long ago, or never was")


async def run(workspace: Workspace, sandbox_id: str, launch: Launch, given: bytes | None) -> AsyncGenerator[Step, None]:
    """In the foreground: whoever leaves this generator ends the process with all that came of it."""
    options = launch.options()
    options["stdin"] = given is not None or launch.stdin
    if launch.timeout_s is None:
        options["timeout_s"] = workspace.parts.settings.max_exec_s
    check_limit(workspace, options["timeout_s"])
    async with (
        workspace.guest(sandbox_id, "stream") as sandbox,
        await sandbox.processes.start(launch.command, **options) as process,
    ):
        feeder = asyncio.create_task(_feed(process, given)) if given is not None else None
        try:
            with workspace.parts.logs.writer(sandbox_id) as log:
                async for step in steps_of(process):
                    if isinstance(step, Piece) and launch.pty is None:  # what a terminal shows is no text to keep
                        log.write(step.stream, step.data)
                    yield step
        finally:
            if feeder is not None:  # a process may end without having read its input
                feeder.cancel()
                await asyncio.wait([feeder])


async def follow(
    workspace: Workspace, sandbox_id: str, process_id: str, stdout_offset: int | None, stderr_offset: int | None
) -> AsyncGenerator[Step, None]:
    """A process that is there already, from its oldest byte kept or from the offsets on. Leaving does not touch it."""
    async with joined(workspace, sandbox_id, process_id, stdout_offset, stderr_offset) as (_, steps):
        async for step in steps:
            yield step


@asynccontextmanager
async def joined(
    workspace: Workspace,
    sandbox_id: str,
    process_id: str,
    stdout_offset: int | None = None,
    stderr_offset: int | None = None,
) -> AsyncIterator[tuple[Process, AsyncGenerator[Step, None]]]:
    """The same, with the process to talk to and its steps."""
    async with (
        workspace.guest(sandbox_id, "stream") as sandbox,
        workspace.parts.logs.reading(sandbox_id, process_id) as log,
        await sandbox.processes.attach(process_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset) as process,
        aclosing(_logged(steps_of(process), log)) as steps,
    ):
        yield process, steps


async def _logged(steps: AsyncGenerator[Step, None], log: ProcessWriter) -> AsyncGenerator[Step, None]:
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, Piece):
                log.write_at(step.stream, step.offset, step.data)
            elif isinstance(step, Exit):
                log.end()
            yield step


async def steps_of(process: Process) -> AsyncGenerator[Step, None]:
    yield Joined(process.id, process.pid, process.stdout_offset, process.stderr_offset, process.dropped)
    async for output in process:
        yield Piece(output.stream, _place(process, output), output.data)
    yield await process.wait()


def _place(process: Process, output: Output) -> int:
    after = process.stdout_offset if output.stream == "stdout" else process.stderr_offset
    return after - len(output.data)


async def _feed(process: Process, data: bytes) -> None:
    with suppress(BelljarError):  # the reader of the same channel meets the same end, and reports it
        await process.write(data)
        await process.close_stdin()


async def write(workspace: Workspace, sandbox_id: str, process_id: str, pieces: AsyncIterable[bytes], *, eof: bool) -> None:
    """To the input of a process, as it comes; `eof` closes it afterwards."""
    last = b""  # sent together with the end: a process that has read all it wants may be gone before a second call
    async with workspace.guest(sandbox_id) as sandbox:
        async for piece in pieces:
            if last:
                await _within_reason(sandbox.processes.write(process_id, last))
            last = piece
        await _within_reason(sandbox.processes.write(process_id, last, eof=eof))


async def _within_reason(writing: Any) -> None:
    try:
        async with asyncio.timeout(TAKES_NOTHING_S):
            await writing
    except TimeoutError:
        raise DeadlineExceeded(f"the process has taken none of its input for {TAKES_NOTHING_S:.0f} s") from None
