"""The processes of one sandbox: run one to its end, start one that stays, find those that are there."""

from __future__ import annotations

import base64
import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.sdk._async.adaptors import call
from belljar.sdk._async.process import AsyncForegroundProcess, AsyncProcess
from belljar.sdk.contents import as_bytes
from belljar.sdk.errors import CommandFailed, InvalidArgument
from belljar.sdk.outputs import ProcessInfo, ProcessResult
from belljar.sdk.requests import route

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
Command = str | Sequence[str]
BytesSink = Callable[[bytes], object]


class AsyncProcesses:
    """A text is a line for the shell; a list is a program and its arguments."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def run(
        self,
        command: Command,
        *,
        input: bytes | str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_seconds: float | None = None,
        on_stdout: BytesSink | None = None,
        on_stderr: BytesSink | None = None,
        max_output: int = MAX_OUTPUT_BYTES,
        check: bool = False,
    ) -> ProcessResult:
        """Run it to its end. The first `max_output` bytes of each stream are kept; callbacks get all of it.

        A time limit is no error here: `timed_out` says so.
        """
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        sinks = {"stdout": on_stdout, "stderr": on_stderr}
        body = _launch(command, cwd, env, user, timeout_seconds)
        if input is not None:
            body["input_base64"] = base64.b64encode(as_bytes(input)).decode()
        async with AsyncForegroundProcess(self._client, self._sandbox_id, body) as process:
            async for chunk in process:
                await call(sinks[chunk.stream], chunk.data)
                kept[chunk.stream] += chunk.data[: max(0, max_output - len(kept[chunk.stream]))]
        assert process.exit is not None
        result = ProcessResult(process.exit, bytes(kept["stdout"]), bytes(kept["stderr"]))
        if check and result.exit_code != 0:
            raise CommandFailed(
                f"the command exited with {result.exit_code}: {command}",
                exit_code=result.exit_code,
                stdout=result.stdout,
                stderr=result.stderr,
            )
        return result

    def stream(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        timeout_seconds: float | None = None,
    ) -> AsyncForegroundProcess:
        """Run it, chunk by chunk. Nothing is started before the first one is asked for; leaving early ends it."""
        body = {**_launch(command, cwd, env, user, timeout_seconds), "stdin": stdin}
        return AsyncForegroundProcess(self._client, self._sandbox_id, body)

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncProcess:
        """Start it in the background: it outlives this call and this program. `pty` is a terminal of (rows, cols)."""
        body = {**_launch(command, cwd, env, user, timeout_seconds), "stdin": stdin}
        if pty is not None:
            body["pty"] = {"rows": pty[0], "cols": pty[1]}
        info = ProcessInfo.from_dict(await self._client.transport.object("POST", self._route(), body))
        return AsyncProcess(self._client, self._sandbox_id, info.id, info.pid)

    async def list(self) -> builtins.list[ProcessInfo]:
        """Those that run, and the last ones that ended."""
        found = await self._client.transport.object("GET", self._route())
        return [ProcessInfo.from_dict(item) for item in found.get("processes") or []]

    async def get(self, process_id: str) -> ProcessInfo:
        return ProcessInfo.from_dict(await self._client.transport.object("GET", route(*self._parts(), process_id)))

    def attach(self, process_id: str, *, stdout_offset: int | None = None, stderr_offset: int | None = None) -> AsyncProcess:
        """A handle of a process that runs; its output from these offsets on, or from the oldest byte that is kept."""
        process = AsyncProcess(self._client, self._sandbox_id, process_id)
        process.stdout_offset, process.stderr_offset = stdout_offset, stderr_offset
        return process

    def _parts(self) -> tuple[str, str, str]:
        return "sandboxes", self._sandbox_id, "processes"

    def _route(self) -> str:
        return route(*self._parts())


def _launch(
    command: Command, cwd: str | None, env: Mapping[str, str] | None, user: str | None, timeout_s: float | None
) -> dict[str, Any]:
    if not isinstance(command, str | list | tuple):
        raise InvalidArgument(f"a command is a line or a list of words, not {type(command).__name__}")
    body: dict[str, Any] = {"cmd": command} if isinstance(command, str) else {"argv": list(command)}
    body |= {"cwd": cwd, "env": dict(env) if env else None, "user": user, "timeout_seconds": timeout_s}
    return {name: value for name, value in body.items() if value is not None}
