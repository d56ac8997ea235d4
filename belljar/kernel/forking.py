"""The warm process and its forks: import once, become a context as often as asked, report how each one ended.

It stays single-threaded, as only such a process can be forked safely, and watches its children through pidfds.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from belljar.kernel.control import Control
from belljar.kernel.figures import Figures
from belljar.kernel.imports import ImportWatch
from belljar.kernel.interrupts import Gate
from belljar.kernel.python import Context
from belljar.kernel.reseed import Reseeder
from belljar.kernel.shell import PythonShell

MAX_PACKET = 64 * 1024
# Run once before any fork, so that no context pays for what is imported on first use.
WARM_CELLS = {
    "sys": ("1+1", "print(end=''); 1", "1/0", "x = = 1", "%pwd", "!true", "await __import__('asyncio').sleep(0)"),
    "pandas": ("import pandas; pandas.DataFrame({'a': [1.5, 2], 'b': ['x', 'y']}).describe()",),
    "matplotlib.pyplot": ("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.title('$x$')",),
}


class Zygote:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._children: dict[int, tuple[str, int]] = {}  # pidfd -> context, pid
        self._gate = Gate()
        self._reseeder = Reseeder()
        self._shell = make_shell(self._gate, self._reseeder)
        signal.signal(signal.SIGUSR1, self._reseeder.handle)  # and so in every context, from its first moment on

    def serve(self, preload: list[str]) -> None:
        failed = self._warm(preload)
        self._send({"ev": "warm", "version": platform.python_version(), "failed": failed})
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd != self._sock.fileno():
                    poll.unregister(fd)
                    self._reap(fd)
                elif (pidfd := self._take_request()) is not None:
                    poll.register(pidfd, select.POLLIN)

    def _warm(self, preload: list[str]) -> list[str]:
        failed = []
        with self._shell.builtin_trap:  # pandas asks get_ipython() what it is imported into
            for name in preload:
                try:
                    importlib.import_module(name)
                except BaseException:
                    failed.append(name)
        warm_up(self._shell)
        self._reseeder.reseed()  # as every fork does first
        gc.collect()
        gc.freeze()  # a collection in a context then neither looks at nor copies what is shared
        return failed

    def _take_request(self) -> int | None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, MAX_PACKET, 3)
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)  # the agent is gone
        request = json.loads(data)
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"ev": "exited", "id": request["id"], "pid": 0, "status": 1 << 8, "message": str(error)})
            pid = -1
        if pid == 0:
            self._become_context(request, fds)
        for fd in fds:
            os.close(fd)
        if pid < 0:
            return None
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (request["id"], pid)
        self._send({"ev": "forked", "id": request["id"], "pid": pid})
        return pidfd

    def _reap(self, pidfd: int) -> None:
        context, pid = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._send({"ev": "exited", "id": context, "pid": pid, "status": status})

    def _become_context(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        """In the child."""
        status = 1
        try:
            os.setsid()  # an interrupt goes to the context's process group
            self._sock.close()
            for pidfd in self._children:
                os.close(pidfd)
            control, stdout, stderr = fds
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)
            self._reseeder.reseed()
            self._gate.install()
            os.environ.update(request.get("env") or {})
            try:
                os.chdir(request["cwd"])
            except OSError:
                pass  # gone since: we are where the zygote is
            self._shell.history_manager.dir_hist[:] = [Path.cwd()]
            channel = Control(socket.socket(fileno=control), self._gate)
            channel.renew_streams()
            Context(channel, self._shell).serve()
            status = 0
        finally:
            os._exit(status)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._sock.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


def make_shell(gate: Gate, reseeder: Reseeder) -> PythonShell:
    shell: PythonShell = PythonShell.instance(gate=gate)
    watch = ImportWatch()
    watch.install()
    watch.when_imported("matplotlib.pyplot", Figures(shell).adopt)
    watch.when_imported("random", lambda module: reseeder.watch(module, "seed", "setstate"))
    watch.when_imported("numpy.random", lambda module: reseeder.watch(module, "seed", "set_state"))
    watch.when_imported("plotly.io", _choose_plotly_renderer)
    return shell


def _choose_plotly_renderer(plotly_io: Any) -> None:
    """The figure's JSON and a page that loads the library, instead of four megabytes of it in the first output."""
    if "PLOTLY_RENDERER" not in os.environ:
        plotly_io.renderers.default = "plotly_mimetype+colab"
    if getattr(plotly_io._renderers, "nbformat", True) is None:
        plotly_io._renderers.nbformat = SimpleNamespace(__version__="5.0")  # nothing but its version is ever used


def warm_up(shell: PythonShell) -> None:
    for module, cells in WARM_CELLS.items():
        for cell in cells if module in sys.modules else ():
            shell.run(cell, count=True)
    shell.forget()
