"""Why a cell failed, in the words that its client gets: from what the kernel said, or from how it died."""

from __future__ import annotations

import errno
import signal
from typing import Final

from belljar.guest.kernelmessages import Failed
from belljar.guest.kernelprocess import Ending

Verdict = tuple[str, Failed, int | None]  # kind, error, peak memory

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_HEAP_FULL: Final = b"heap out of memory"


def judge(failed: Failed, stopping: str | None) -> str:
    """The kind of an error that the kernel reports itself."""
    if stopping is not None and (failed.kind == "interrupted" or failed.name == "KeyboardInterrupt"):
        return "interrupted"
    if failed.kind != "exception":
        return failed.kind
    if failed.name == "SystemExit":
        return "exit"
    if failed.name == "MemoryError":
        return "out_of_memory"
    if failed.errno in _NO_SPACE:
        return "disk_full"
    return "exception"


def timed_out(timeout_s: float, failed: Failed | None) -> Verdict:
    """`failed` is what the interrupted cell raised; None if it had to be killed."""
    if failed is None:
        value = f"the cell did not finish within {timeout_s:g} s and could not be interrupted; the context was started afresh"
        return "timeout", Failed("timeout", "TimeoutError", f"{value}, its state is gone", [], True), None
    value = f"the cell did not finish within {timeout_s:g} s and was interrupted; the context keeps its state"
    return "timeout", Failed("timeout", "TimeoutError", value, failed.traceback, failed.state_lost), None


def dead(ending: Ending, last_words: bytes, idle: bool) -> Verdict:
    """The kernel died under a cell, or before it: then the cell was not run."""
    heap_full = ending.signal == signal.SIGABRT and _HEAP_FULL in last_words
    if ending.out_of_memory or heap_full:
        kind, name, how = "out_of_memory", "OutOfMemory", "ran out of memory and was killed"
        if ending.peak_memory:
            how += f", with {ending.peak_memory / 2**20:.0f} MiB in use"
    else:
        kind, name, how = "died", "KernelDied", _how(ending)
    rest = "the context was started afresh, its state is gone"
    before, after = ("since the last cell ", ", so this cell was not run") if idle else ("", "")
    return kind, Failed(kind, name, f"{before}the kernel {how}; {rest}{after}", [], True), ending.peak_memory


def _how(ending: Ending) -> str:
    if ending.violation is not None:
        return f"broke its protocol ({ending.violation}) and was killed"
    if ending.signal is not None:
        try:
            return f"was ended by {signal.Signals(ending.signal).name}"
        except ValueError:
            return f"was ended by signal {ending.signal}"
    if ending.code is not None:
        return f"ended by itself, with exit status {ending.code}"
    return "was ended"


def stopped(what: str, was_running: bool) -> Verdict:
    """By somebody who restarted or deleted the context."""
    value = f"the context was {what} {'while the cell ran' if was_running else 'before the cell could run'}"
    return "interrupted", Failed("interrupted", "ContextStopped", value, [], True), None


def never_ready(message: str) -> Verdict:
    return "died", Failed("died", "KernelDied", f"the kernel could not be started: {message}", [], True), None
