"""This machine's own terminal, while a sandbox's is shown in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DETACH = b"\x1d"  # Ctrl-]
END_OF_INPUT = b"\x04"  # Ctrl-D


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
    try:
        import termios
        import tty

        before = termios.tcgetattr(fd)
    except (ImportError, OSError, termios.error):
        yield  # no terminal: input is piped in
        return
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
