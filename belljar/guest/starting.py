"""process.start: from a request to a process whose program runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.failure import invalid
from belljar.guest.params import Params
from belljar.guest.process import Process
from belljar.guest.spawn import Plan, find_programs, parse_failure
from belljar.guest.stdin import Stdin
from belljar.wire.frames import STDERR, STDOUT

_SHELLS: Final = ["/bin/bash", "/bin/sh"]
_MAX_SIDE: Final = 65535


class Start:
    """One start under way. It ends in `on_running`, or in a RESET on the channel."""

    def __init__(self, context: Context, params: Params, channel: Channel, name: str) -> None:
        self._context = context
        self._channel = channel
        self._name = name
        self._argv, self._programs = _command(params)
        self._account = context.account(params)
        self._env = context.environment(self._account, params.environment("env"))
        cwd = params.find_text("cwd")
        self._cwd, self._cwd_required = context.resolve(cwd or ""), cwd is not None
        self._wants_stdin = params.flag("stdin")
        self._size = _terminal_size(params)
        self.timeout_s = params.find_seconds("timeout_s")
        self.background = params.flag("background")
        if self._size:
            self._env.setdefault("TERM", "xterm-256color")
        if not self._programs:
            self._programs = find_programs(self._argv[0], self._env.get("PATH", ""))

    def run(self, on_exit: Callable[[Process], None], on_running: Callable[[Process], None]) -> None:
        started_at = time.time()
        account = self._account
        plan = Plan(
            self._argv, self._programs, self._env, self._cwd, self._cwd_required,
            account.uid, account.gid, account.groups, bool(self._size),
        )  # fmt: skip
        with ExitStack() as ours, ExitStack() as theirs:
            ends = self._terminal_ends(ours, theirs) if self._size else self._pipe_ends(ours, theirs)
            fds, outputs, stdin_fd = ends
            pid, group, report_fd = self._context.launcher.launch(plan, fds)
            process = Process(self._name, pid, group, on_exit)
            for stream, fd in outputs.items():
                process.add_output(fd, stream)
            if stdin_fd >= 0:
                process.stdin = Stdin(stdin_fd, bool(self._size))
            process.terminal_fd = stdin_fd if self._size else -1
            process.facts = self._facts(started_at)
            ours.pop_all()
        loop = asyncio.get_running_loop()

        def on_report() -> None:
            try:
                report = os.read(report_fd, 64)
            except OSError:  # it died with our plan unread
                report = b"?"
            loop.remove_reader(report_fd)
            os.close(report_fd)
            if report:
                os.waitpid(pid, 0)
                process.discard()
                group.remove()
                self._channel.fail(parse_failure(report, plan))
            else:
                on_running(process)

        loop.add_reader(report_fd, on_report)

    def _facts(self, started_at: float) -> dict[str, Any]:
        return {
            "argv": self._argv,
            "cwd": self._cwd,
            "user": self._account.name,
            "started_at": started_at,
            "background": self.background,
            "pty": self._size is not None,
        }

    def _pipe_ends(self, ours: ExitStack, theirs: ExitStack) -> tuple[tuple[int, int, int], dict[int, int], int]:
        stdin_fd = -1
        if self._wants_stdin:
            stdin, stdin_fd = os.pipe()
            ours.callback(os.close, stdin_fd)
            os.set_blocking(stdin_fd, False)
        else:
            stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        theirs.callback(os.close, stdin)
        outputs: dict[int, int] = {}
        writers: list[int] = []
        for stream in (STDOUT, STDERR):
            outputs[stream], writer = os.pipe()
            ours.callback(os.close, outputs[stream])
            theirs.callback(os.close, writer)
            os.set_blocking(outputs[stream], False)
            writers.append(writer)
        return (stdin, writers[0], writers[1]), outputs, stdin_fd

    def _terminal_ends(self, ours: ExitStack, theirs: ExitStack) -> tuple[tuple[int, int, int], dict[int, int], int]:
        master, slave = os.openpty()
        ours.callback(os.close, master)
        theirs.callback(os.close, slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *(self._size or (24, 80)), 0, 0))
        if os.geteuid() == 0:
            os.fchown(slave, self._account.uid, -1)
        os.set_blocking(master, False)
        writer = os.dup(master)  # reading ends on its own; input and resizes need the terminal until the process is gone
        ours.callback(os.close, writer)
        return (slave, slave, slave), {STDOUT: master}, writer


def _command(params: Params) -> tuple[list[str], list[str]]:
    """The argument list, and the programs to try when that is settled already."""
    argv, shell = params.find_texts("argv"), params.find_text("shell")
    if (argv is None) == (shell is None):
        raise invalid("exactly one of `argv` and `shell` is needed")
    if shell is not None:
        return [_SHELLS[0], "-c", shell], _SHELLS
    if not argv or not argv[0]:
        raise invalid("`argv` names no program")
    return argv, []


def _terminal_size(params: Params) -> tuple[int, int] | None:
    pty = params.find_group("pty")
    if pty is None:
        return None
    return pty.integer("rows", 24, 1, _MAX_SIDE), pty.integer("cols", 80, 1, _MAX_SIDE)
