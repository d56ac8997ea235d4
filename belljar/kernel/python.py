"""A Python context: takes messages from the agent, runs cells, tells what came of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import sys
import time
from typing import Any

from belljar.kernel.changes import FilesBefore
from belljar.kernel.control import Control
from belljar.kernel.shell import PythonShell
from belljar.kernel.stdin import open_stdin
from belljar.kernel.variables import VariablesBefore, find_variables, list_variables


class Context:
    def __init__(self, control: Control, shell: PythonShell) -> None:
        self._control = control
        self._shell = shell
        shell.control = control

    def serve(self) -> None:
        """Until the agent closes the control socket. Nothing is done before its first message: it still has to place us."""
        ready = False
        while (received := self._control.receive(self._shell.runner.loop)) is not None:
            if not ready:
                ready = True
                self._control.send({"ev": "ready", "language": "python", "version": platform.python_version()})
            self._handle(*received)
        atexit._run_exitfuncs()

    def _handle(self, message: dict[str, Any], blob: bytes) -> None:
        match message.get("do"):
            case "run":
                code = message.get("code")  # or, when that would be too long for JSON, the blob
                self._run(blob.decode("utf-8", "surrogatepass") if code is None else code, message)
            case "env":
                os.environ.update(message["set"])
                if message.get("cwd"):
                    with contextlib.suppress(OSError):
                        os.chdir(message["cwd"])
            case "variables":
                self._send_variables()

    def _run(self, code: str, message: dict[str, Any]) -> None:
        shell, control = self._shell, self._control
        control.n = message["n"]
        control.renew_streams()
        sys.stdin = open_stdin(message.get("stdin"))
        shell.gate.install()
        count = message.get("count", True)
        before = self._look() if message.get("changes") else None
        number = shell.execution_count if count else None
        started = time.perf_counter()
        try:
            shell.gate.open()
            try:
                shell.run(code, count)
            finally:
                shell.gate.close()
        except BaseException:  # an interrupt in the few steps around the user's code
            shell.gate.close()
            shell.showtraceback()
        duration = time.perf_counter() - started
        control.leave_if_forked()
        if shell.failure is not None:
            shell.send(shell.failure, b"")
        self._send_done({"ev": "done", "n": control.n, "count": number, "duration_s": duration, "changes": self._compare(before)})

    def _look(self) -> tuple[VariablesBefore, FilesBefore]:
        return VariablesBefore(self._variables()), FilesBefore(os.getcwd())  # noqa: PTH109

    def _compare(self, before: tuple[VariablesBefore, FilesBefore] | None) -> dict[str, Any] | None:
        if before is None:
            return None
        variables, files = before
        return {"variables": variables.compare(self._variables()), "files": files.compare()}

    def _variables(self) -> dict[str, Any]:
        return find_variables(self._shell.user_ns, self._shell.user_ns_hidden)

    def _send_done(self, event: dict[str, Any]) -> None:
        try:
            self._control.send(event)
        except ValueError:  # names and paths of an absurd length
            self._control.send({**event, "changes": None})

    def _send_variables(self) -> None:
        variables = list_variables(self._variables())
        while True:
            try:
                return self._control.send({"ev": "variables", "variables": variables})
            except ValueError:
                variables = variables[: len(variables) // 2]
