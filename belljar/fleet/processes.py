"""The processes of one sandbox: run one to its end, start one to talk to, find those that are there.

Input is checked before anything is sent, so that a malformed call changes nothing in the guest.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from belljar.errors import BelljarError, InvalidInput
from belljar.fleet.answers import MAX_ID_CHARS, MAX_SIZE, Answer
from belljar.fleet.checks import (
    check_command,
    check_env,
    check_fits,
    check_path,
    check_signal,
    check_text,
    check_timeout,
    check_user,
    check_whole,
)
from belljar.fleet.process import (
    ANSWER_DEADLINE_S,
    MAX_PID,
    Dropped,
    LinkProvider,
    Process,
    PtySize,
    first_message,
    write_stdin,
)

# The guest keeps a process's timeout itself; the host waits this much longer before it calls the guest broken.
TIMEOUT_GRACE_S = 10.0
MAX_OUTPUT_BYTES = 16 * 1024 * 1024

Sink = Callable[[bytes], Awaitable[None] | None]


@dataclass(frozen=True)
class ProcessResult:
    """A process that has ended, and what it wrote. `dropped` counts bytes beyond what was kept of each stream."""

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool
    oom_killed: bool
    dropped: Dropped

    @property
    def stdout_text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Both streams, stdout first."""
        return self.stdout_text + self.stderr_text


@dataclass(frozen=True)
class ProcessInfo:
    """A process as `list` shows it; one that has ended keeps its place for a while, with its `exit_code` or `signal`."""

    id: str
    pid: int
    argv: tuple[str, ...]
    cwd: str
    user: str
    started_at: float
    running: bool
    exit_code: int | None
    signal: int | None
    background: bool
    pty: bool
    stdout_bytes: int
    stderr_bytes: int


class Processes:
    """The processes of one sandbox. `links` attaches to the guest when a call first needs it."""

    def __init__(self, links: LinkProvider) -> None:
        self._links = links

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float | None = None,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> ProcessResult:
        """Run to the end. Output goes to the callbacks as it comes; the first `max_output` bytes of each stream are kept.

        A string is a line for the shell. When this call is cancelled, the process is killed with all its children.
        """
        kept = _Kept(max_output, on_stdout, on_stderr)
        given = _check_input(stdin)
        process = await self.start(command, cwd=cwd, env=env, user=user, stdin=given is not None, timeout_s=timeout_s)
        async with process:
            feeder = asyncio.create_task(_feed(process, given)) if given is not None else None
            try:
                async for output in process:
                    await kept.take(output.stream, output.data)
            finally:
                if feeder is not None:  # a process may end without having read its input
                    feeder.cancel()
                    await asyncio.wait([feeder])
        ended = await process.wait()
        return ProcessResult(
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=bytes(kept.streams["stdout"]),
            stderr=bytes(kept.streams["stderr"]),
            duration_s=ended.duration_s,
            timed_out=ended.timed_out,
            oom_killed=ended.oom_killed,
            dropped=Dropped(
                ended.dropped.stdout + kept.dropped["stdout"],
                ended.dropped.stderr + kept.dropped["stderr"],
            ),
        )

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = True,
        pty: PtySize | None = None,
        timeout_s: float | None = None,
        background: bool = False,
    ) -> Process:
        """Start, and return once the program is running. A background process outlives its caller, and keeps bounded output."""
        params: dict[str, Any] = {
            **check_command(command),
            "stdin": stdin,
            "pty": pty.to_params() if pty is not None else None,
            "background": background,
        }
        if cwd is not None:
            params["cwd"] = check_path(cwd, "cwd")
        if env is not None:
            params["env"] = check_env(env)
        if user is not None:
            params["user"] = check_user(user)
        if timeout_s is not None:
            params["timeout_s"] = check_timeout(timeout_s)
        check_fits(params)
        return await self._start(params)

    async def _start(self, params: Mapping[str, Any]) -> Process:
        channel = await (await self._links()).open("process.start", dict(params))
        try:
            started = (await first_message(channel, "start")).object("started")
            if params["background"]:
                process = Process(self._links, None, started, kills=False)
                channel.end()
                await channel.aclose()
            else:
                process = Process(self._links, channel, started, kills=True)
        except BaseException:
            await channel.aclose()
            raise
        timeout_s = params.get("timeout_s")
        if timeout_s is not None:
            process.end_by(asyncio.get_running_loop().time() + timeout_s + TIMEOUT_GRACE_S, timeout_s)
        return process

    async def attach(self, process_id: str, *, stdout_offset: int | None = None, stderr_offset: int | None = None) -> Process:
        """Join a process that is there already, taking it over from whoever had it; reads from the oldest byte kept, or from
        the offsets given."""
        params = {"id": _check_id(process_id), "stdout_offset": stdout_offset, "stderr_offset": stderr_offset}
        for name in ("stdout_offset", "stderr_offset"):
            if params[name] is not None:
                check_whole(params[name], name, 0, MAX_SIZE)
        channel = await (await self._links()).open("process.attach", params)
        try:
            attached = (await first_message(channel, "attach")).object("attached")
            process = Process(self._links, channel, attached, kills=False)
            process.skip_to(attached, stdout_offset or 0, stderr_offset or 0)
            return process
        except BaseException:
            await channel.aclose()
            raise

    async def list(self) -> builtins.list[ProcessInfo]:
        answer = await (await self._links()).request("process.list", {}, ANSWER_DEADLINE_S)
        return [_parse_info(item) for item in Answer(answer, "list of processes").objects("processes")]

    async def signal(self, process_id: str, signal: int | str, *, tree: bool = False) -> None:
        await self._ask("process.signal", {"id": _check_id(process_id), "signal": check_signal(signal), "tree": tree})

    async def kill(self, process_id: str) -> None:
        """Kill it and all that came of it."""
        await self._ask("process.kill", {"id": _check_id(process_id)})

    async def resize(self, process_id: str, size: PtySize) -> None:
        """Of a process with a terminal."""
        await self._ask("process.resize", {"id": _check_id(process_id), **size.to_params()})

    async def write(self, process_id: str, data: bytes | str, *, eof: bool = False) -> None:
        """To the stdin of a process; `eof` closes it afterwards."""
        given = _check_input(data)
        await write_stdin(await self._links(), _check_id(process_id), given or b"", eof=eof)

    async def _ask(self, op: str, params: dict[str, Any]) -> None:
        await (await self._links()).request(op, params, ANSWER_DEADLINE_S)


class _Kept:
    """The output of a run: all of it to the callbacks, the beginning of it in memory."""

    def __init__(self, limit: int, on_stdout: Sink | None, on_stderr: Sink | None) -> None:
        self._limit = check_whole(limit, "max_output", 0, 2**40)
        self._sinks = {"stdout": on_stdout, "stderr": on_stderr}
        self.streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.dropped = {"stdout": 0, "stderr": 0}

    async def take(self, stream: str, data: bytes) -> None:
        room = max(0, self._limit - len(self.streams[stream]))
        self.streams[stream] += data[:room]
        self.dropped[stream] += max(0, len(data) - room)
        sink = self._sinks[stream]
        if sink is not None:
            pending = sink(data)
            if inspect.isawaitable(pending):
                await pending


async def _feed(process: Process, data: bytes) -> None:
    try:
        await process.write(data)
        await process.close_stdin()
    except BelljarError:
        pass  # the reader of the same channel meets the same end, and reports it


def _check_input(data: object) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    raise InvalidInput(f"stdin must be bytes or text, not {type(data).__name__}")


def _check_id(process_id: object) -> str:
    return check_text(process_id, "process id", max_bytes=MAX_ID_CHARS)


def _parse_info(item: Answer) -> ProcessInfo:
    return ProcessInfo(
        id=item.text("id", max_chars=MAX_ID_CHARS),
        pid=item.whole("pid", 1, MAX_PID),
        argv=tuple(item.texts("argv")),
        cwd=item.text("cwd"),
        user=item.text("user"),
        started_at=item.number("started_at"),
        running=item.flag("running"),
        exit_code=item.optional_whole("exit_code", 0, 255),
        signal=item.optional_whole("signal", 1, 64),
        background=item.flag("background"),
        pty=item.flag("pty"),
        stdout_bytes=item.whole("stdout_bytes"),
        stderr_bytes=item.whole("stderr_bytes"),
    )
