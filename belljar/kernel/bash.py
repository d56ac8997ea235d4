"""A bash context: one shell that lives on from cell to cell, and this program between it and the agent.

The shell is an interactive one without a terminal, because only that does what people expect of a notebook: an interrupt throws
away the cell that runs, loops and functions and all, and the shell stays; so does an unset variable under `set -u`. Each cell is
read from a file in memory, so here documents and syntax errors are those of a script. What we and the shell say to each other goes
through a few descriptors that a cell does not see unless it looks for them.

A cell whose last command fails is an error, CommandFailed. `exit`, or a failure under `set -e`, ends the shell: that is told as
such, and the next cell finds a new one.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from typing import Any

if __name__ == "__main__":  # run as a file, isolated: nothing has put our own package on the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from belljar.wire import pipe

STATUS_FD, CODE_FD, STDIN_FD, STDERR_FD = 250, 251, 252, 253
# Until here its stderr is /dev/null: an interactive shell complains that it has no terminal.
SETUP = f"set +o history +H; unset HISTFILE PS1 PS2; exec 2>&{STDERR_FD} {STDERR_FD}>&-"
REPORT = f"builtin printf '%s\\n' $? >&{STATUS_FD}"


class Shell:
    """The bash process. A new one is started when it has ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._status, status = os.pipe()
        self._code, self._stdin = os.memfd_create("cell"), os.memfd_create("stdin")
        for source, target in ((status, STATUS_FD), (self._code, CODE_FD), (self._stdin, STDIN_FD), (2, STDERR_FD)):
            os.dup2(source, target, inheritable=True)
        os.close(status)
        self._said = b""
        self._commands = -1
        self._start()

    def _start(self) -> None:
        reader, self._commands = os.pipe()
        env = {**os.environ, "PS1": "", "PS2": ""}
        argv = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
        fds = (STATUS_FD, CODE_FD, STDIN_FD, STDERR_FD)
        self._process = subprocess.Popen(argv, stdin=reader, stderr=subprocess.DEVNULL, env=env, pass_fds=fds)
        os.close(reader)
        if self.do(SETUP) is None:
            sys.exit("bash ended as soon as it was started")

    def run(self, code: str, stdin: str | None) -> int | None:
        """The exit status of a cell; None if the shell has ended."""
        _fill(self._code, code)
        if stdin is None:
            return self.do(f". /dev/fd/{CODE_FD} </dev/null")
        _fill(self._stdin, stdin)
        return self.do(f". /dev/fd/{CODE_FD} </dev/fd/{STDIN_FD}")

    def do(self, line: str) -> int | None:
        os.write(self._commands, f"{line}\n{REPORT}\n".encode(errors="surrogateescape"))
        pidfd = os.pidfd_open(self._process.pid)
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        poll.register(self._control, select.POLLRDHUP)
        try:
            while b"\n" not in self._said:
                ready = dict(poll.poll())
                if self._control.fileno() in ready:
                    sys.exit()  # the agent is gone
                if self._status in ready:
                    self._said += os.read(self._status, 4096)
                elif pidfd in ready:
                    return None
        finally:
            os.close(pidfd)
        line_said, _, self._said = self._said.partition(b"\n")
        return int(line_said) if line_said.isdigit() else 1

    def replace(self) -> int:
        """A new shell for one that has ended. Returns how that ended, as subprocess tells it."""
        code = self._process.wait()
        os.close(self._commands)
        self._said = b""
        self._start()
        return code


class Kernel:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._decoder = pipe.Decoder()
        self._shell = Shell(control)
        self._send({"ev": "ready", "language": "bash", "version": _version()})

    def serve(self) -> None:
        while data := self._control.recv(64 * 1024):
            for message, blob in self._decoder.feed(data):
                self._handle(message, blob)

    def _handle(self, message: dict[str, Any], blob: bytes) -> None:
        action = message.get("do")
        if action == "run":
            self._run(message, blob.decode("utf-8", "surrogatepass") if message["code"] is None else message["code"])
        elif action == "env":
            lines = [f"export {name}={shlex.quote(value)}" for name, value in message["set"].items() if name.isidentifier()]
            if message["cwd"]:
                lines.append(f"cd -- {shlex.quote(message['cwd'])}")
            self._quietly("\n".join(lines))
        elif action == "reseed":  # this machine is a copy: two of them must not draw the same numbers
            self._quietly(f"RANDOM={int.from_bytes(os.urandom(4), 'big')}")

    def _quietly(self, code: str) -> None:
        if self._shell.run(f"{{ {code}\n}} 2>/dev/null", None) is None:
            self._shell.replace()

    def _run(self, message: dict[str, Any], code: str) -> None:
        number = message["n"]
        started = time.perf_counter()
        status = self._shell.run(code, message["stdin"])
        error = self._error(status)
        if error is not None:
            self._send({"ev": "error", "n": number, "traceback": [], **error})
        duration = time.perf_counter() - started
        self._send({"ev": "done", "n": number, "count": None, "duration_s": duration, "changes": None})

    def _error(self, status: int | None) -> dict[str, Any] | None:
        if status is None:
            code = self._shell.replace()
            if code >= 0:
                value = f"the shell ended with exit status {code}; a new one was started"
                return {"kind": "exit", "name": "SystemExit", "value": value, "state_lost": True}
            value = f"the shell was ended by {_signal_name(-code)}; a new one was started"
            return {"kind": "died", "name": "ShellDied", "value": value, "state_lost": True, "killed": code == -signal.SIGKILL}
        if status == 128 + signal.SIGINT:
            return {"kind": "interrupted", "name": "KeyboardInterrupt", "value": "the cell was interrupted"}
        if status:
            return {"name": "CommandFailed", "value": f"exit status {status}", "killed": status == 128 + signal.SIGKILL}
        return None

    def _send(self, message: dict[str, Any]) -> None:
        self._control.sendall(pipe.encode(message))


def _fill(fd: int, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    os.ftruncate(fd, 0)
    start = 0
    while start < len(data):
        start += os.pwrite(fd, data[start:], start)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _version() -> str:
    done = subprocess.run(["bash", "-c", "echo -n $BASH_VERSION"], capture_output=True, text=True, check=False)
    return done.stdout


def main() -> None:
    # An interrupt is for the shell. A handler of ours, unlike SIG_IGN, is not inherited by it.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    control = socket.socket(fileno=int(os.environ.pop("BELLJAR_CONTROL_FD")))
    control.set_inheritable(False)
    Kernel(control).serve()


if __name__ == "__main__":
    main()
