"""The life of a zygote: a warm Python interpreter that runs no cells, but is forked into contexts that do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from belljar.guest.cgroups import Group, remove_when_empty
from belljar.guest.failure import Failure

MAX_PACKET: Final = 64 * 1024
_FORK_DEADLINE_S: Final = 60.0
_LAST_WORDS: Final = 2048


class Zygote:
    """Asked over a socket that keeps messages apart. What it says is not trusted: it runs as the user."""

    def __init__(self, pid: int, group: Group, sock: socket.socket, stderr: int) -> None:
        self.pid = pid
        self.alive = True
        self._group = group
        self._socket = sock
        self._stderr = stderr
        self._last_words = b""
        self._loop = asyncio.get_running_loop()
        self._warm: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._forks: dict[str, asyncio.Future[int]] = {}
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._pidfd = os.pidfd_open(pid)
        sock.setblocking(False)
        self._loop.add_reader(self._pidfd, self._on_dead)
        self._loop.add_reader(sock, self._on_packet)
        self._loop.add_reader(stderr, self._on_stderr)

    async def wait_warm(self, deadline_s: float) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(asyncio.shield(self._warm), deadline_s)
        except TimeoutError:
            self.kill()
            raise Failure("sandbox_error", f"Python did not get ready within {deadline_s:.0f} s") from None

    async def fork(self, name: str, cwd: str, fds: tuple[int, ...]) -> int:
        """The pid of a new process that waits for its first message. `fds` is its control socket, stdout and stderr."""
        message = json.dumps({"do": "fork", "id": name, "cwd": cwd, "env": {}}).encode()
        if len(message) > MAX_PACKET:
            raise Failure("invalid_input", "the working directory's name is too long")
        forked = self._forks[name] = self._loop.create_future()
        try:
            socket.send_fds(self._socket, [message], list(fds))
            pid: int = await asyncio.wait_for(forked, _FORK_DEADLINE_S)
        except (OSError, TimeoutError):
            self.kill()  # stuck or gone: the next one is asked of another
            raise Failure("sandbox_error", "the process that Python contexts are forked from does not answer") from None
        finally:
            self._forks.pop(name, None)
        self._statuses.setdefault(pid, self._loop.create_future())
        return pid

    def status_of(self, pid: int) -> asyncio.Future[int]:
        """How a fork has ended, once. Nobody knows if the zygote is gone too."""
        status = self._statuses.pop(pid, None) or self._loop.create_future()
        if not self.alive and not status.done():
            status.cancel()
        elif not status.done():
            self._statuses[pid] = status
            status.add_done_callback(lambda _: self._statuses.pop(pid, None))
        return status

    def send_signal(self, number: int) -> None:
        if self.alive and self._warm.done():  # before that it has no handler, and would die
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self._group.kill()

    # -- what it says

    def _on_packet(self) -> None:
        try:
            packet = self._socket.recv(MAX_PACKET)
            message = json.loads(packet) if packet else None
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._loop.remove_reader(self._socket)
            self.kill()
            return
        event, pid = message.get("ev"), message.get("pid")
        if event == "warm" and not self._warm.done():
            self._warm.set_result(message)
        elif event == "forked" and type(pid) is int:
            forked = self._forks.get(str(message.get("id")))
            if forked is not None and not forked.done() and _is_child(pid, self.pid):
                forked.set_result(pid)
        elif event == "exited" and type(pid) is int and pid:
            self._on_exited(pid, message.get("status"))
        elif event == "exited":
            forked = self._forks.get(str(message.get("id")))
            if forked is not None and not forked.done():
                why = str(message.get("message"))[:200]
                forked.set_exception(Failure("sandbox_error", f"the guest cannot start another process: {why}"))

    def _on_exited(self, pid: int, status: object) -> None:
        waiting = self._statuses.get(pid)
        if waiting is not None and not waiting.done() and type(status) is int:
            waiting.set_result(status)

    def _on_stderr(self) -> None:
        try:
            data = os.read(self._stderr, 64 * 1024)
        except BlockingIOError:
            return
        self._last_words = (self._last_words + data)[-_LAST_WORDS:]
        if not data:
            self._loop.remove_reader(self._stderr)

    def _on_dead(self) -> None:
        self.alive = False
        self._on_stderr()
        self._loop.remove_reader(self._stderr)
        os.close(self._stderr)
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._socket)
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        os.close(self._pidfd)
        self._socket.close()
        said = self._last_words.decode(errors="replace").strip()
        problem = Failure("sandbox_error", f"the process that Python contexts are forked from has ended: {said or 'it was killed'}")
        if not self._warm.done():
            self._warm.set_exception(problem)
            self._warm.exception()  # retrieved: nobody may be waiting for it
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(problem)
        for status in tuple(self._statuses.values()):
            if not status.done():
                status.cancel()
        self._statuses.clear()
        remove_when_empty(self._group)


def _is_child(pid: int, parent: int) -> bool:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent
    except (OSError, ValueError, IndexError):
        return False
