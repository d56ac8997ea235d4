"""The user's end of a process: stdin in, stdout and stderr out, and a terminal in raw mode when the guest has one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import aclosing
from typing import BinaryIO

from belljar.errors import BelljarError, InvalidInput
from belljar.fleet.process import Exit, Process, PtySize
from belljar.sdk.terminals import DETACH, raw_mode, read_input


class Detached(Exception):
    """The user pressed the detach key."""


def terminal_size() -> PtySize:
    size = os.get_terminal_size(sys.stdin.fileno())
    return PtySize(max(1, size.lines), max(1, size.columns))


def check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("--tty needs a terminal, and input or output is redirected; leave it out")


async def relay(process: Process, *, stdin: bool) -> int:
    """Both directions until the process ends; returns its exit code as a shell would say it."""
    feeder = asyncio.create_task(_feed(process)) if stdin else None
    try:
        async for output in process:
            _emit(sys.stdout.buffer if output.stream == "stdout" else sys.stderr.buffer, output.data)
    finally:
        if feeder is not None:
            feeder.cancel()
            await asyncio.wait([feeder])
    ended = await process.wait()
    _explain(ended)
    return ended.shell_code


async def relay_terminal(process: Process, *, detachable: bool = False) -> int:
    """The same with the user's terminal handed to the guest: every key goes there, and resizes too."""
    loop, resizes = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def resized() -> None:
        task = loop.create_task(_resize(process))
        resizes.add(task)
        task.add_done_callback(resizes.discard)

    with raw_mode(sys.stdin.fileno()):
        loop.add_signal_handler(signal.SIGWINCH, resized)
        reader = asyncio.create_task(relay(process, stdin=False))
        feeder = asyncio.create_task(_feed(process, detachable=detachable))
        try:
            await asyncio.wait([reader, feeder], return_when=asyncio.FIRST_COMPLETED)
            if feeder.done() and isinstance(feeder.exception(), Detached):
                raise Detached
            return await reader
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            for task in (reader, feeder, *resizes):
                task.cancel()
            await asyncio.gather(reader, feeder, *resizes, return_exceptions=True)


async def _feed(process: Process, *, detachable: bool = False) -> None:
    try:
        async with aclosing(read_input(sys.stdin.fileno())) as pieces:
            async for piece in pieces:
                if detachable and DETACH in piece:
                    raise Detached
                await process.write(piece)
        await process.close_stdin()
    except BelljarError:
        pass  # the reader of the same process meets the same end, and reports it


async def _resize(process: Process) -> None:
    try:
        await process.resize(terminal_size())
    except (BelljarError, OSError):
        pass  # the process or the terminal is going away; whoever reads the output will say so


def _emit(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


def _explain(ended: Exit) -> None:
    """What an exit code alone would leave a riddle."""
    if ended.timed_out:
        print(f"belljar: killed, its time ran out after {ended.duration_s:.1f} s", file=sys.stderr)
    if ended.oom_killed:
        print("belljar: the guest ran out of memory and killed it", file=sys.stderr)
    if ended.dropped.stdout or ended.dropped.stderr:
        lost = ended.dropped.stdout + ended.dropped.stderr
        print(f"belljar: {lost} bytes of older output were no longer kept", file=sys.stderr)
