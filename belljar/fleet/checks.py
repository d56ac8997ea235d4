"""What callers hand in, judged before anything is sent or stored: every check raises InvalidInput that says what to change."""

from __future__ import annotations

import json
import math
import os
import signal as signals
from collections.abc import Mapping, Sequence
from typing import Any

from belljar.errors import InvalidInput
from belljar.wire.frames import MAX_PAYLOAD

MAX_PATH_BYTES = 4096
MAX_TIMEOUT_S = 365 * 24 * 3600.0
# What Linux accepts as one argument or one NAME=value string (MAX_ARG_STRLEN), less its ending NUL.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
MAX_PTY_SIDE = 65535
MAX_LABELS = 64


def check_text(value: object, what: str, *, max_bytes: int = MAX_PATH_BYTES, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be text, not {type(value).__name__}")
    if not value and not empty:
        raise InvalidInput(f"{what} is empty")
    if "\0" in value:
        raise InvalidInput(f"{what} contains a NUL character")
    try:
        # Names that are no UTF-8 come out of the guest as lone low surrogates, and go back in as the same bytes.
        size = len(os.fsencode(value))
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} contains half a surrogate pair, which is no Unicode text") from None
    if size > max_bytes:
        raise InvalidInput(f"{what} has {size} bytes; at most {max_bytes} are possible")
    return value


def check_path(value: object, what: str = "path") -> str:
    return check_text(os.fspath(value) if isinstance(value, os.PathLike) else value, what)


def check_user(value: object) -> str:
    return check_text(value, "user", max_bytes=256)


def check_whole(value: object, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be a whole number, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidInput(f"{what} must be between {low} and {high}")
    return value


def check_timeout(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"timeout must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value) or not 0 < value <= MAX_TIMEOUT_S:
        raise InvalidInput(f"timeout must be more than 0 and at most {MAX_TIMEOUT_S:.0f} seconds (one year)")
    return float(value)


def check_signal(value: int | str) -> int:
    """A number from 1 to 64, or a name with or without SIG."""
    if isinstance(value, str):
        name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
        if name not in signals.Signals.__members__:
            raise InvalidInput(f"no signal is called {value[:40]!r}; use a name like TERM or a number from 1 to 64")
        return int(signals.Signals[name])
    return check_whole(value, "signal", 1, 64)


def check_env(env: object) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise InvalidInput(f"env must map names to values, not {type(env).__name__}")
    for name, value in env.items():
        check_text(name, "the name of an environment variable", max_bytes=MAX_ARGUMENT_BYTES)
        if "=" in name:
            raise InvalidInput(f"the name of an environment variable contains '=': {name[:80]!r}")
        room = MAX_ARGUMENT_BYTES - len(os.fsencode(name)) - 1
        check_text(value, f"the value of {name[:80]}", max_bytes=room, empty=True)
    return dict(env)


def check_metadata(metadata: object) -> dict[str, str]:
    """Labels of a sandbox or snapshot: a few short names and values. None at all is an empty mapping."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata must map names to values, not {type(metadata).__name__}")
    if len(metadata) > MAX_LABELS:
        raise InvalidInput(f"metadata has {len(metadata)} entries; at most {MAX_LABELS} are possible")
    for name, value in metadata.items():
        check_text(name, "a metadata name", max_bytes=256)
        check_text(value, f"the metadata value of {name!r}", empty=True)
    return dict(metadata)


def check_command(command: object) -> dict[str, Any]:
    """A string is a line for the shell; a sequence of strings is a program and its arguments."""
    if isinstance(command, str):
        return {"shell": check_text(command, "command", max_bytes=MAX_ARGUMENT_BYTES)}
    if isinstance(command, bytes | bytearray) or not isinstance(command, Sequence):
        raise InvalidInput(f"command must be a string or a list of strings, not {type(command).__name__}")
    if not command:
        raise InvalidInput("command is an empty list; give at least the program's name")
    check_text(command[0], "the program's name")
    return {"argv": [check_text(word, "an argument", max_bytes=MAX_ARGUMENT_BYTES, empty=True) for word in command]}


def check_fits(params: Mapping[str, Any]) -> None:
    """Requests are one frame; the few hundred bytes kept back are for the operation's name and the braces."""
    size = len(json.dumps(params))
    if size > MAX_PAYLOAD - 512:
        raise InvalidInput(
            f"command and environment take {size} bytes, and at most {MAX_PAYLOAD - 512} fit; write the data to a file first"
        )
