"""From a plan to a running program, by way of a process that is waiting for one.

Starting a program takes a fork, a control group, another user, and an exec. Under emulation the fork of a Python process, the
page faults that follow it on both sides and the move into a control group cost more than all the rest. None of these depends on
what is to be run, so they are done ahead: a spare child waits, set up as far as possible, and is told what to become. It is part
of every snapshot, which makes the first command of a new sandbox the fastest.

The socket that brings the plan also brings back what went wrong; exec closes it, so silence means that the program runs.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import marshal
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from belljar.guest.cgroups import Group, Groups
from belljar.guest.failure import Failure, from_os_error, invalid

_NOT_RUNNABLE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_SIGNALS_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_LENGTH: Final = struct.Struct("I")
_SOCKET: Final = 3  # its number in the child
CONTROL_FD: Final = 4  # where a program finds the fourth descriptor that it is given
_TARGETS: Final = (0, 1, 2, CONTROL_FD)
_LAST_FD: Final = 65536


class Plan(NamedTuple):
    """What a child needs to know; a tuple of plain values, so that it can be marshalled."""

    argv: list[str]
    programs: list[str]  # tried in this order
    env: dict[str, str]
    cwd: str
    cwd_required: bool  # False: the default, which the user may have deleted
    uid: int
    gid: int
    groups: tuple[int, ...]
    terminal: bool


class Launched(NamedTuple):
    pid: int
    group: Group
    report_fd: int  # reads the child's failure, or the end when the program runs


class Launcher:
    """Starts programs, with one child ahead."""

    def __init__(self, groups: Groups, unprotect: Callable[[], None]) -> None:
        self._groups = groups
        self._unprotect = unprotect
        self._spare: _Child | None = None

    def prepare(self) -> None:
        """Have a spare child ready. Failing is no harm now: the next launch will say so."""
        if self._spare is None:
            with suppress(OSError):
                self._spare = _Child(self._groups.make(), self._unprotect)

    def launch(self, plan: Plan, fds: tuple[int, ...]) -> Launched:
        """Run the plan with `fds` as its standard descriptors, and a fourth, if there is one, as CONTROL_FD."""
        message = marshal.dumps(tuple(plan))
        child, self._spare = self._spare, None
        if child is not None and child.tell(message, fds):
            return child.launched()
        try:
            child = _Child(self._groups.make(), self._unprotect)
        except OSError as error:
            raise Failure("sandbox_error", f"the guest cannot start another process: {error.strerror}") from None
        if not child.tell(message, fds):
            raise Failure("sandbox_error", "a new process died before its program began; the guest may be out of memory")
        return child.launched()


class _Child:
    def __init__(self, group: Group, unprotect: Callable[[], None]) -> None:
        self._group = group
        ours, theirs = socket.socketpair()
        try:
            self._pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            group.remove()
            raise
        if self._pid == 0:
            _become(theirs.fileno(), group.join_fd, unprotect)
        theirs.close()
        group.joined(self._pid)
        self._socket = ours
        # Whatever the child does, the agent must not block on it. A plan is at most two messages of the wire long.
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)

    def tell(self, message: bytes, fds: tuple[int, ...]) -> bool:
        """False if the child is gone: somebody killed it while it waited. It is cleaned away then."""
        try:
            data = _LENGTH.pack(len(message)) + message
            sent = socket.send_fds(self._socket, [data], list(fds))
            # Once it has everything the child may exec at any time, and then even an empty send would fail.
            if sent < len(data):
                self._socket.sendall(data[sent:])
        except OSError:
            self._socket.close()
            self._group.kill()
            with suppress(OSError):
                os.waitpid(self._pid, 0)
            self._group.remove()
            return False
        return True

    def launched(self) -> Launched:
        return Launched(self._pid, self._group, self._socket.detach())


def find_programs(name: str, path: str) -> list[str]:
    if "/" in name:
        return [name]
    return [f"{folder or '.'}/{name}" for folder in path.split(":")]


# -- in the child


def _become(fd: int, group_fd: int, unprotect: Callable[[], None]) -> NoReturn:
    stage = "setup"
    try:
        gc.disable()
        if group_fd >= 0:
            os.write(group_fd, b"0")
        os.setsid()
        os.dup2(fd, _SOCKET, inheritable=False)
        os.closerange(_SOCKET + 1, _LAST_FD)  # also the input of other processes, whose end must be ours to give
        for number in _SIGNALS_IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        unprotect()
        wire = socket.socket(fileno=_SOCKET)
        _rehearse()
        plan, fds = _receive(wire)
        for target, source in zip(_TARGETS, fds, strict=False):  # sources are higher than targets, and in their order
            os.dup2(source, target)
            os.close(source)  # recv_fds cannot make them close on exec (its flags go nowhere in Python 3.11)
        if plan.terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        stage = "user"
        if os.geteuid() == 0:
            os.setgroups(plan.groups)
            os.setresgid(plan.gid, plan.gid, plan.gid)
            os.setresuid(plan.uid, plan.uid, plan.uid)
        stage = "cwd"
        try:
            os.chdir(plan.cwd)
        except OSError:
            if plan.cwd_required:
                raise
            os.chdir("/")
        stage = "exec"
        _exec(plan)
    except OSError as error:
        os.write(_SOCKET, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


def _receive(wire: socket.socket) -> tuple[Plan, list[int]]:
    data, fds, _, _ = socket.recv_fds(wire, 64 * 1024, len(_TARGETS))
    if not data:
        os._exit(0)  # the agent has ended, and with it the need for us
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        data += wire.recv(64 * 1024)
    return Plan(*marshal.loads(memoryview(data)[_LENGTH.size :])), fds


def _rehearse() -> None:
    """Go through the motions once: the pages that this touches are then ours, and need no fault when it counts."""
    plan = Plan(["x"], ["/nonexistent/x"] * 4, dict(os.environ), "/", False, 0, 0, (), False)
    with suppress(OSError):
        _exec(Plan(*marshal.loads(marshal.dumps(tuple(plan)))))
    with suppress(OSError):
        os.execve("/nonexistent/x", plan.argv, plan.env)


def _exec(plan: Plan) -> None:
    denied: OSError | None = None
    for program in plan.programs:
        if not os.access(program, os.F_OK):  # much cheaper than an exec that fails
            continue
        try:
            os.execve(program, plan.argv, plan.env)
        except OSError as error:
            if error.errno not in _NOT_RUNNABLE:
                raise
            denied = denied or error
    raise denied or FileNotFoundError(errno.ENOENT, "")


# -- in the agent again


def parse_failure(report: bytes, plan: Plan) -> Failure:
    """What the child said before it gave up."""
    try:
        stage, number = report.decode().split()
        error = OSError(int(number), os.strerror(int(number)))
    except ValueError:
        return Failure("sandbox_error", "the process died before its program began; the guest may be out of memory")
    if stage == "cwd":
        return from_os_error(error, f"working directory {plan.cwd}")
    if stage != "exec":
        return Failure("sandbox_error", f"the process could not be set up ({stage}: {error.strerror})")
    if error.errno == errno.E2BIG:
        return invalid("arguments and environment are too long for the guest's kernel")
    if error.errno in (*_NOT_RUNNABLE, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR):
        return Failure("command_not_found", f"{plan.argv[0]}: {error.strerror}", command=plan.argv[0])
    return Failure("sandbox_error", f"{plan.argv[0]}: {error.strerror}")
