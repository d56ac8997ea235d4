"""A sandbox's terminal in this program's own. Written by hand on both sides: waiting for keys differs."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from belljar.sdk.terminals import DETACH, END_OF_INPUT, raw_mode, read_input, standard_input, terminal_size

if TYPE_CHECKING:
    from belljar.sdk._async.terminal import AsyncTerminal


async def interact(terminal: AsyncTerminal) -> int | None:
    loop, stdin = asyncio.get_running_loop(), standard_input()
    resized = asyncio.Event()
    resized.set()

    async def type_keys() -> None:
        async with aclosing(read_input(stdin)) as keys:
            async for data in keys:
                if DETACH in data:
                    return
                await terminal.send(data)
        await terminal.send(END_OF_INPUT)
        await asyncio.Future()  # what was piped in is used up; the rest of the output is still to come

    async def follow_size() -> None:
        while True:
            await resized.wait()
            resized.clear()
            await terminal.resize(*terminal_size())

    async def show() -> None:
        async for data in terminal:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    with raw_mode(stdin):
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(signal.SIGWINCH, resized.set)
        tasks = [asyncio.create_task(work()) for work in (show, type_keys, follow_size)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            with suppress(NotImplementedError, ValueError, RuntimeError):
                loop.remove_signal_handler(signal.SIGWINCH)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return terminal.exit_code
