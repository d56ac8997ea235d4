"""From a plan to a running program: fork, change everything a child must change, exec.

Between fork and exec the child runs Python in a copy of the agent, so it does as little as it can, and everything that
can be worked out before is in the plan. What goes wrong there comes back through a pipe that exec closes: silence means
that the program runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from belljar.guest.accounts import Account
from belljar.guest.failure import Failure, from_os_error, invalid

_NOT_RUNNABLE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_SIGNALS_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(frozen=True, slots=True)
class Plan:
    argv: list[str]
    programs: list[str]  # tried in this order
    env: dict[str, str]
    cwd: str
    cwd_required: bool  # False: the default, which the user may have deleted
    account: Account
    fds: tuple[int, int, int]
    terminal: bool
    group_fd: int
    unprotect: Callable[[], None]


def find_programs(name: str, path: str) -> list[str]:
    if "/" in name:
        return [name]
    return [f"{folder or '.'}/{name}" for folder in path.split(":")]


def spawn(plan: Plan) -> tuple[int, int]:
    """The child's pid, and a descriptor that reads the child's failure, or its end when the program runs."""
    failure_read, failure_write = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(failure_read)
        os.close(failure_write)
        raise Failure("sandbox_error", f"the guest cannot start another process: {error.strerror}") from None
    if pid == 0:
        _become(plan, failure_write)
    os.close(failure_write)
    return pid, failure_read


def _become(plan: Plan, failure_fd: int) -> None:
    stage = "setup"
    try:
        if plan.group_fd >= 0:
            os.write(plan.group_fd, b"0")
        os.setsid()
        for target, fd in enumerate(plan.fds):
            os.dup2(fd, target)
        if plan.terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in _SIGNALS_IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        plan.unprotect()
        stage = "user"
        account = plan.account
        if os.geteuid() == 0:
            os.setgroups(account.groups)
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
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
        os.write(failure_fd, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


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
