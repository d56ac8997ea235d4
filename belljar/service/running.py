"""Commands in a sandbox of a workspace. A time limit that runs out is an error here: callers of a server want to know."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from belljar.errors import DeadlineExceeded, InvalidInput
from belljar.fleet.execution import Execution
from belljar.fleet.processes import ProcessResult
from belljar.service.workspace import Workspace

Command = str | Sequence[str]


@dataclass(frozen=True)
class Chunk:
    """Text that a command wrote: whole characters, however the bytes were cut on their way."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class Ended:
    """The last thing a stream of a command yields."""

    exit_code: int


async def run_command(
    workspace: Workspace,
    sandbox_id: str,
    command: Command,
    timeout_s: float,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ProcessResult:
    check_limit(workspace, timeout_s)
    with workspace.parts.logs.writer(sandbox_id) as log:
        async with workspace.guest(sandbox_id) as sandbox:
            result = await sandbox.processes.run(
                command,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
                on_stdout=partial(log.write, "stdout"),
                on_stderr=partial(log.write, "stderr"),
            )
    if result.timed_out:
        raise _timeout("command", timeout_s)
    return result


async def stream_command(
    workspace: Workspace, sandbox_id: str, command: Command, timeout_s: float
) -> AsyncGenerator[Chunk | Ended, None]:
    """Output as it comes, then the end. Leaving the generator kills the command."""
    check_limit(workspace, timeout_s)
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    async with (
        workspace.guest(sandbox_id, "stream") as sandbox,
        await sandbox.processes.start(command, stdin=False, timeout_s=timeout_s) as process,
    ):
        with workspace.parts.logs.writer(sandbox_id) as log:
            async for output in process:
                log.write(output.stream, output.data)
                if text := decoders[output.stream].decode(output.data):
                    yield Chunk(output.stream, text)
        ended = await process.wait()
        if text := decoders["stdout"].decode(b"", final=True):
            yield Chunk("stdout", text)
        if text := decoders["stderr"].decode(b"", final=True):
            yield Chunk("stderr", text)
        if ended.timed_out:
            raise _timeout("command", timeout_s)
        yield Ended(ended.shell_code)


def raise_if_timed_out(execution: Execution, timeout_s: float) -> Execution:
    """For callers who want to know of a time limit as of an error."""
    if execution.error is not None and execution.error.kind == "timeout":
        raise _timeout("cell", timeout_s)
    return execution


def check_limit(workspace: Workspace, timeout_s: float) -> None:
    limit = workspace.parts.settings.max_exec_s
    if not 0 < timeout_s <= limit:
        raise InvalidInput(f"a time limit must be more than 0 and at most {limit:g} seconds (the setting max_exec_s)")


def _timeout(what: str, timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{what} timeout after {timeout_s:g}s; it was stopped")
