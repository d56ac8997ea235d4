"""One process in a guest, as its caller holds it: output to iterate, stdin to write, an end to wait for.

A process and its caller are joined by a channel, and there are two kinds. Closing the channel that started a foreground process
kills it with all its children: nobody is left to want it. Closing a channel that was attached later only lets go. A Process
without a channel (background, detached, or after the link broke) attaches by itself when its output is wanted again, from
the byte where it stopped reading.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from belljar.errors import AgentProtocol, BelljarError, Conflict, DeadlineExceeded
from belljar.fleet.answers import MAX_ID_CHARS, Answer
from belljar.fleet.checks import MAX_PTY_SIDE, check_signal, check_whole
from belljar.vm.link import Channel, Data, Link, Message

LinkProvider = Callable[[], Awaitable[Link]]

ANSWER_DEADLINE_S = 60.0  # generous: fifty sandboxes may be waking up on two emulated cores
MAX_PID = 2**31 - 1


@dataclass(frozen=True)
class PtySize:
    """Rows and columns of a terminal."""

    rows: int = 24
    cols: int = 80

    def to_params(self) -> dict[str, int]:
        rows, cols = check_whole(self.rows, "rows", 1, MAX_PTY_SIDE), check_whole(self.cols, "cols", 1, MAX_PTY_SIDE)
        return {"rows": rows, "cols": cols}


@dataclass(frozen=True)
class Output:
    """Bytes that the process wrote. A terminal has stdout only."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class Dropped:
    """Bytes of each stream that were written and can no longer be had."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True)
class Exit:
    """How a process ended: `exit_code`, or the `signal` that ended it."""

    exit_code: int | None
    signal: int | None
    duration_s: float
    timed_out: bool
    oom_killed: bool
    dropped: Dropped

    @property
    def shell_code(self) -> int:
        """One number, as a shell would say it: 128 + n for a signal, 124 for a timeout."""
        if self.timed_out:
            return 124
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)


class Process:
    """A process in a guest. One reader at a time; `async with` closes it on the way out."""

    def __init__(self, links: LinkProvider, channel: Channel | None, started: Answer, *, kills: bool) -> None:
        self._links = links
        self._channel = channel
        self._kills = kills  # closing the channel kills the process
        self._deadline: float | None = None
        self._reading = False
        self.id = started.text("id", max_chars=MAX_ID_CHARS)
        self.pid = started.whole("pid", 1, MAX_PID)
        # Where the next byte of each stream lies, counted from the first that the process ever wrote.
        self.stdout_offset = self.stderr_offset = 0
        self.dropped = Dropped()  # what this reader missed, as far as it is known yet
        self.exit: Exit | None = None

    def skip_to(self, attached: Answer, stdout_offset: int, stderr_offset: int) -> None:
        """The guest reads on from the offsets asked for, or from later ones if what lay there is no longer kept."""
        stdout, stderr = attached.whole("stdout_offset", stdout_offset), attached.whole("stderr_offset", stderr_offset)
        missed, self.stdout_offset, self.stderr_offset = self.dropped, stdout, stderr
        self.dropped = Dropped(missed.stdout + stdout - stdout_offset, missed.stderr + stderr - stderr_offset)

    def end_by(self, deadline: float, timeout_s: float) -> None:
        """Stop believing in the guest's own timeout at `deadline` (of the running loop's clock)."""
        self._deadline, self._timeout_s = deadline, timeout_s

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Process:
        return self

    async def __anext__(self) -> Output:
        if self.exit is not None:
            raise StopAsyncIteration
        if self._reading:
            raise Conflict(f"the output of process {self.id} is being read already; one reader at a time")
        self._reading = True
        try:
            output = await self._read()
        except BelljarError:
            await self.aclose()
            raise
        finally:
            self._reading = False
        if output is None:
            raise StopAsyncIteration
        return output

    async def wait(self) -> Exit:
        """Until it has ended; output that nobody has read by then is thrown away."""
        async for _ in self:
            pass
        assert self.exit is not None
        return self.exit

    async def write(self, data: bytes | str) -> None:
        """To its stdin; waits while the process is not reading."""
        raw = data.encode() if isinstance(data, str) else data
        if self._channel is not None:
            await self._channel.send(raw)
        else:
            await write_stdin(await self._links(), self.id, raw, eof=False)

    async def close_stdin(self) -> None:
        if self._channel is not None and self._kills:
            self._channel.end()  # on an attached channel an end would mean that we let go
        else:
            await write_stdin(await self._links(), self.id, b"", eof=True)

    async def resize(self, size: PtySize) -> None:
        await self._ask("process.resize", **size.to_params())

    async def signal(self, signal: int | str, *, tree: bool = False) -> None:
        """To the process itself, or with `tree` to every process that came of it."""
        await self._ask("process.signal", signal=check_signal(signal), tree=tree)

    async def kill(self) -> None:
        """Kill it and all that came of it. Its end still arrives: `wait()` says how it went."""
        await self._ask("process.kill")

    async def detach(self) -> None:
        """Let go of it and let it run on."""
        if self._channel is not None and self._kills and self.exit is None:
            # A newer attach takes the process over from the channel that started it, and letting go of that one kills nothing.
            async with await self._open_attach():
                pass
        await self.aclose()

    async def aclose(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

    async def _read(self) -> Output | None:
        """The next output, or None when the end has been read."""
        if self._channel is None:
            self._channel, self._kills = await self._open_attach(), False
        try:
            async with asyncio.timeout_at(self._deadline):
                event = await self._channel.receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"process {self.id} was to be killed by the guest after {self._timeout_s:g} s, and its end was never reported; "
                "the guest is overloaded or no longer answers"
            ) from None
        if isinstance(event, Data):
            return self._take(event)
        if not isinstance(event, Message):
            raise AgentProtocol(f"the guest ended the stream of process {self.id} without saying how the process ended")
        ended = parse_exit(Answer(event.body, "process end").object("exited"))
        await self._finish(self._channel)
        self.exit = ended
        return None

    def _take(self, event: Data) -> Output:
        if event.stream == 1:
            self.stdout_offset += len(event.data)
            return Output("stdout", event.data)
        if event.stream == 2:
            self.stderr_offset += len(event.data)
            return Output("stderr", event.data)
        raise AgentProtocol(f"the guest sent output on stream {event.stream}, which no process has")

    async def _finish(self, channel: Channel) -> None:
        """End both directions in good order: a reset might be taken as a wish to kill what the process left running."""
        channel.end()
        if await next_event(channel, "the end of a stream") is not None:
            raise AgentProtocol(f"the guest went on sending after process {self.id} had ended")
        await self.aclose()

    async def _open_attach(self) -> Channel:
        channel = await (await self._links()).open(
            "process.attach", {"id": self.id, "stdout_offset": self.stdout_offset, "stderr_offset": self.stderr_offset}
        )
        try:
            attached = (await first_message(channel, "attach")).object("attached")
            self.skip_to(attached, self.stdout_offset, self.stderr_offset)
        except BaseException:
            await channel.aclose()
            raise
        return channel

    async def _ask(self, op: str, **params: object) -> None:
        await (await self._links()).request(op, {"id": self.id, **params}, ANSWER_DEADLINE_S)


def parse_exit(answer: Answer) -> Exit:
    dropped = answer.object("dropped")
    exit_code, signal = answer.optional_whole("exit_code", 0, 255), answer.optional_whole("signal", 1, signals.NSIG - 1)
    if (exit_code is None) == (signal is None):
        raise AgentProtocol("the guest reported the end of a process with both or neither of exit code and signal")
    return Exit(
        exit_code=exit_code,
        signal=signal,
        duration_s=answer.number("duration_s"),
        timed_out=answer.flag("timed_out"),
        oom_killed=answer.flag("oom_killed"),
        dropped=Dropped(dropped.whole("stdout"), dropped.whole("stderr")),
    )


async def next_event(channel: Channel, what: str) -> Data | Message | None:
    """The next event of a channel that owes us one; None at its end."""
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            return await channel.receive()
    except TimeoutError:
        raise DeadlineExceeded(f"the guest has not sent {what} within {ANSWER_DEADLINE_S:.0f} s") from None


async def first_message(channel: Channel, what: str) -> Answer:
    event = await next_event(channel, f"an answer to {what}")
    if not isinstance(event, Message):
        raise AgentProtocol(f"the guest sent no answer to {what}")
    return Answer(event.body, f"answer to {what}")


async def write_stdin(link: Link, process_id: str, data: bytes, *, eof: bool) -> None:
    async with await link.open("process.write", {"id": process_id, "eof": eof}) as channel:
        await channel.send(data)
        channel.end()
        written = (await first_message(channel, "write")).whole("written")
    if written != len(data):
        raise AgentProtocol(f"the guest says that it wrote {written} bytes of {len(data)}")
