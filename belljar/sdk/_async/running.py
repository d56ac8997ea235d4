"""What a sandbox runs: commands, code, and whatever `run` takes it for."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from belljar.errors import DeadlineExceeded
from belljar.sdk._async.adaptors import Content, Flow, call
from belljar.sdk._async.contexts import AsyncCodeContext, AsyncContexts, AsyncRepl
from belljar.sdk._async.filesystem import AsyncSandboxFilesystem
from belljar.sdk._async.terminal import AsyncTerminal
from belljar.sdk.errors import CommandFailed, ConnectionError, ExecInterrupted, InvalidArgument, PandastackError, SandboxTimeout
from belljar.sdk.outputs import Tail
from belljar.sdk.requests import GuestPath, exec_limits, route
from belljar.sdk.results import Execution
from belljar.sdk.values import ExecResult

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient

TextSink = Callable[[str], object]
# What is kept of each stream, to be told if it breaks off.
MAX_PARTIAL_CHARS = 16 * 1024 * 1024


class AsyncRunning:
    """Commands are lines for a shell, and run as the template's ordinary user in its folder."""

    id: str
    data: dict[str, Any]
    _client: AsyncClient

    async def exec(self, cmd: str, timeout_seconds: float | None = None, check: bool = False) -> ExecResult:
        """Run a command to its end. A non-zero exit is no error, unless `check` asks for CommandFailed."""
        body = _limited({"cmd": cmd}, timeout_seconds)
        path = route("sandboxes", self.id, "exec")
        try:
            data = await self._client.transport.object("POST", path, body, timeout=exec_limits(timeout_seconds))
        except PandastackError as problem:
            raise _as_timeout(problem, cmd) from problem
        result = ExecResult.from_dict(data)
        if check and result.exit_code != 0:
            raise CommandFailed(
                f"the command exited with {result.exit_code}: {cmd}",
                exit_code=result.exit_code,
                stdout=result.stdout,
                stderr=result.stderr,
            )
        return result

    async def exec_stream(
        self,
        cmd: str,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
        timeout_seconds: float | None = None,
    ) -> int:
        """The same with its output as it comes; returns the exit code."""
        sinks = {"stdout": on_stdout, "stderr": on_stderr}
        async with aclosing(self._output(cmd, timeout_seconds)) as output:
            async for name, chunk in output:
                if name == "exit":
                    return int(chunk)
                await call(sinks[name], chunk)
        raise AssertionError("the output has no end")

    async def _output(self, cmd: str, timeout_seconds: float | None) -> Flow[tuple[str, str]]:
        """("stdout" or "stderr", text) as it comes, and last ("exit", code)."""
        seen = {"stdout": Tail(MAX_PARTIAL_CHARS), "stderr": Tail(MAX_PARTIAL_CHARS)}
        body, path = _limited({"cmd": cmd}, timeout_seconds), route("sandboxes", self.id, "exec", "stream")
        try:
            async with aclosing(self._client.transport.events("POST", path, body)) as events:
                async for event in events:
                    if event.name in seen:
                        chunk = str(event.data.get("chunk", ""))
                        seen[event.name].add(chunk)
                        yield event.name, chunk
                    elif event.name == "exit":
                        yield "exit", str(event.data["exit_code"])
                        return
            reason = "the stream ended early"
        except ConnectionError as problem:
            if problem.code != "answer_lost":
                raise
            reason = problem.message
        except PandastackError as problem:
            raise _as_timeout(problem, cmd) from problem
        raise ExecInterrupted(
            f"what became of the command is not known: {reason}",
            partial_stdout=seen["stdout"].text,
            partial_stderr=seen["stderr"].text,
        )

    async def run(self, source: str, timeout: float | None = None) -> Execution | ExecResult:
        """What the template is for: code in its first context (`python-data`), or else a command.

        Both kinds of answer have stdout, stderr, text, exit_code and duration_ms. A time limit raises SandboxTimeout.
        """
        if "run" not in self.data:  # a handle that was made from an id alone
            self.data = await self._client.transport.object("GET", route("sandboxes", self.id))
        if self.data.get("run") == "code":
            return await self._default_context.run_code(source, timeout)
        return await self.exec(source, timeout_seconds=timeout)

    async def run_code(self, code: str, language: str = "python", timeout_seconds: float | None = None) -> ExecResult:
        """A program of its own, which ends: `python3 -c` or `bash -c`. For code that keeps its state see `contexts`."""
        program = {"python": "python3", "py": "python3", "python3": "python3", "shell": "bash", "sh": "bash", "bash": "bash"}
        if language.lower() not in program:
            raise InvalidArgument(f"run_code runs Python or shell, not {language!r}; a context may know more languages")
        return await self.exec(f"{program[language.lower()]} -c {shlex.quote(code)}", timeout_seconds=timeout_seconds)

    async def create_code_context(self, language: str = "python") -> AsyncCodeContext:
        """An interpreter that keeps its state from call to call."""
        return await AsyncContexts(self._client, self.id).create(language)

    async def repl(self, language: str = "python") -> AsyncRepl:
        """The first context of a language, for code that wants to see everything it shows."""
        return AsyncRepl(AsyncContexts(self._client, self.id).default(language))

    async def terminal(
        self, cmd: str | None = None, *, rows: int = 24, cols: int = 80, cwd: str | None = None, user: str | None = None
    ) -> AsyncTerminal:
        """A terminal with a shell, or with `cmd`. Closing it ends what runs in it."""
        return await AsyncTerminal.open(
            self._client.transport,
            route("sandboxes", self.id, "exec", "pty"),
            {"rows": rows, "cols": cols, "cmd": cmd, "cwd": cwd, "user": user},
        )

    async def write(self, path: GuestPath, data: Content) -> dict[str, Any]:
        """Write a file; short for `filesystem.write`."""
        return await AsyncSandboxFilesystem(self._client, self.id).write(path, data)

    async def read(self, path: GuestPath) -> bytes:
        """Read a file; short for `filesystem.read`."""
        return await AsyncSandboxFilesystem(self._client, self.id).read(path)

    @property
    def _default_context(self) -> AsyncCodeContext:
        return AsyncContexts(self._client, self.id).default()


class AsyncSandboxCommands:
    """Commands under the name that some clients give them."""

    def __init__(self, sandbox: AsyncRunning) -> None:
        self._sandbox = sandbox

    async def run(self, cmd: str, timeout: float | None = None) -> ExecResult:
        return await self._sandbox.exec(cmd, timeout_seconds=timeout)


def _limited(body: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
    return body if timeout_s is None else {**body, "timeout_seconds": timeout_s}


def _as_timeout(problem: PandastackError, cmd: str) -> PandastackError:
    if not isinstance(problem, DeadlineExceeded):
        return problem
    timeout = SandboxTimeout(f"command timed out: {cmd[:200]}")
    timeout.details = {**problem.details, "reason": problem.message}
    return timeout
