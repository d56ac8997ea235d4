"""One process that the agent started: its output, input, exit, and the channel that is attached to it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Callable
from typing import Any, Final

from belljar.guest.cgroups import Group
from belljar.guest.channel import Channel
from belljar.guest.failure import Failure
from belljar.guest.output import Output
from belljar.guest.stdin import Stdin
from belljar.wire.frames import STDERR, STDOUT

_GRACE_S: Final = 0.2
_SHOWN_ARGV: Final = 200  # characters of the command in a listing, which must fit one message


class Process:
    """Running from the moment its program was exec'd; `exited` holds the report afterwards."""

    def __init__(self, name: str, pid: int, group: Group, on_exit: Callable[[Process], None]) -> None:
        self.id = name
        self.pid = pid
        self.group = group
        self.facts: dict[str, Any] = {}
        self.outputs: list[Output] = []
        self.stdin: Stdin | None = None
        self.terminal_fd = -1
        self.exited: dict[str, Any] | None = None
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic()
        self._status: tuple[int | None, int | None] | None = None
        self._grace_over = False
        self._timed_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._channel: Channel | None = None
        self._pidfd = -1

    # -- setting up

    def begin(self) -> None:
        """Its program runs: watch it, and read what it writes."""
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_dead)
        for output in self.outputs:
            output.pump()

    def limit(self, timeout_s: float) -> None:
        self._timer = self._loop.call_later(timeout_s, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timed_out = True
        self.group.kill()

    def add_output(self, fd: int, stream: int) -> None:
        self.outputs.append(Output(fd, stream, self._report_if_over))

    # -- consumers

    def attach(self, channel: Channel, offsets: dict[int, int | None]) -> None:
        if self._channel is not None:
            older, self._channel = self._channel, None
            older.disconnect()
            older.fail(Failure("conflict", f"process {self.id}: somebody else has attached to it"))
        self._channel = channel
        channel.on_room = self.pump
        for output in self.outputs:
            output.attach(channel, offsets.get(output.stream))

    def detach(self) -> None:
        self._channel = None
        for output in self.outputs:
            output.detach()

    def pump(self) -> None:
        for output in self.outputs:
            output.pump()
        self._report_if_over()

    def sizes(self) -> dict[str, int]:
        return {key: next((o.ring.end for o in self.outputs if o.stream == stream), 0) for key, stream in _STREAMS.items()}

    def positions(self) -> dict[str, int]:
        return {key: next((o.position for o in self.outputs if o.stream == stream), 0) for key, stream in _STREAMS.items()}

    def dropped(self) -> dict[str, int]:
        return {key: next((o.dropped for o in self.outputs if o.stream == stream), 0) for key, stream in _STREAMS.items()}

    # -- the end

    def _on_dead(self) -> None:
        result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        if result is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._timer is not None:
            self._timer.cancel()
        exited = result.si_code == os.CLD_EXITED
        self._status = (result.si_status, None) if exited else (None, result.si_status)
        if self.stdin is not None:
            self.stdin.close()
        if self.terminal_fd >= 0:
            os.close(self.terminal_fd)
            self.terminal_fd = -1
        for output in self.outputs:
            output.process_exited()
        if all(output.ended for output in self.outputs):
            self._report_if_over()
        else:
            self._loop.call_later(_GRACE_S, self._on_grace_over)

    def _on_grace_over(self) -> None:
        self._grace_over = True
        self._report_if_over()

    def _report_if_over(self) -> None:
        """Dead, its pipes drained, and everything sent: say so. Also brings the word to one who attached after the exit."""
        if self._status is None:
            return
        if self._grace_over:
            for output in self.outputs:
                output.settle()
        if not all(output.settled for output in self.outputs):
            return
        if self.exited is None:
            self._record()
        channel = self._channel
        if channel is None or not all(output.delivered for output in self.outputs):
            return
        channel.disconnect()
        channel.message({"exited": {**(self.exited or {}), "dropped": self.dropped()}})
        channel.end()
        self.detach()

    def _record(self) -> None:
        code, number = self._status or (None, None)
        killed = number == signal.SIGKILL or code == 128 + signal.SIGKILL
        self.exited = {
            "id": self.id,
            "exit_code": code,
            "signal": number,
            "timed_out": self._timed_out,
            "duration_s": round(time.monotonic() - self._started, 6),
            "oom_killed": killed and not self._timed_out and self.group.was_out_of_memory(),
        }
        self._on_exit(self)

    def discard(self) -> None:
        """Let go of everything: nobody can ask for this process any more."""
        if self.stdin is not None:
            self.stdin.close()
        for output in self.outputs:
            output.close()
        if self.terminal_fd >= 0:
            os.close(self.terminal_fd)
            self.terminal_fd = -1

    # -- for operations

    def send_signal(self, number: int, tree: bool) -> None:
        if tree:
            for pid in self.group.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        elif self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
        else:
            raise Failure("conflict", f"process {self.id} has exited")

    def resize(self, rows: int, cols: int) -> None:
        if self.terminal_fd < 0:
            raise Failure("conflict", f"process {self.id} has no terminal")
        fcntl.ioctl(self.terminal_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def describe(self) -> dict[str, Any]:
        sizes = self.sizes()
        code, number = self._status or (None, None)
        argv: list[str] = self.facts["argv"]
        shown = argv if sum(map(len, argv)) <= _SHOWN_ARGV else [" ".join(argv)[:_SHOWN_ARGV] + "..."]
        return {
            **self.facts,
            "argv": shown,
            "id": self.id,
            "pid": self.pid,
            "running": self._status is None,
            "exit_code": code,
            "signal": number,
            "stdout_bytes": sizes["stdout"],
            "stderr_bytes": sizes["stderr"],
        }


_STREAMS: Final = {"stdout": STDOUT, "stderr": STDERR}
