"""A sandbox's terminal in this program's own. Written by hand on both sides: waiting for keys differs."""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from belljar.sdk.errors import Lost
from belljar.sdk.terminals import DETACH, END_OF_INPUT, raw_mode, standard_input, terminal_size

if TYPE_CHECKING:
    from belljar.sdk._sync.terminal import Terminal

LOOK_EVERY_S = 0.2


def interact(terminal: Terminal) -> int | None:
    stdin = standard_input()
    over, detached = threading.Event(), threading.Event()

    def type_keys() -> None:
        size = (0, 0)
        with suppress(Lost):
            while not over.is_set():
                if size != terminal_size():
                    size = terminal_size()
                    terminal.resize(*size)
                if not select.select([stdin], [], [], LOOK_EVERY_S)[0]:
                    continue
                data = os.read(stdin, 65536)
                if DETACH in data:
                    detached.set()
                    return
                terminal.send(data or END_OF_INPUT)
                if not data:
                    return  # what was piped in is used up; the rest of the output is still to come

    with raw_mode(stdin):
        typing = threading.Thread(target=type_keys, daemon=True)
        typing.start()
        try:
            while not detached.is_set():
                try:
                    data = terminal.receive(timeout=LOOK_EVERY_S)
                except TimeoutError:
                    continue
                if data is None:
                    break
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        finally:
            over.set()
            typing.join()
    return terminal.exit_code
