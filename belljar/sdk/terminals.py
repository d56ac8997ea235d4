"""This machine's own terminal, while a sandbox's is shown in it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from belljar.sdk.errors import InvalidArgument
from belljar.sdk.unserved import Unserved

# Ctrl-], as in telnet: a raw terminal has no other key that does not belong to the guest.
DETACH = b"\x1d"
END_OF_INPUT = b"\x04"  # Ctrl-D
READ_BYTES = 64 * 1024


def standard_input() -> int:
    """The descriptor of this program's own input."""
    if find_spec("termios") is None:
        raise Unserved("this system has no terminals that could show a sandbox's; use send and receive")
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        raise InvalidArgument("this program has no input to type with, as in a notebook; use send and receive") from None


def terminal_size() -> tuple[int, int]:
    """Rows and columns."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return 24, 80
    return size.lines or 24, size.columns or 80


@contextmanager
def raw_mode(fd: int) -> Iterator[None]:
    """Every key goes to the sandbox as it is. Whatever happens, the terminal is given back as it was."""
    import termios
    import tty

    try:
        before = termios.tcgetattr(fd)
    except termios.error:
        yield  # no terminal: input is piped in
        return
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # the default would throw away what was typed ahead
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def read_input(fd: int) -> AsyncGenerator[bytes, None]:
    """What comes in, as it comes. Not in a thread: one that waits for a key could not be ended when the process does."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
        pollable = True
    except PermissionError:  # a regular file or /dev/null, which can always be read
        pollable = False
    try:
        while True:
            if pollable:
                await ready.wait()
            piece = os.read(fd, READ_BYTES)
            if not piece:
                return
            if pollable:
                # Not watched while the piece is on its way, or unread input would keep the loop spinning.
                loop.remove_reader(fd)
                ready.clear()
            yield piece
            if pollable:
                loop.add_reader(fd, ready.set)
    finally:
        if pollable:
            loop.remove_reader(fd)
