"""One kernel: the process that runs a context's cells, with its control socket and its two output pipes.

Output comes through pipes and events through the socket. A kernel flushes its output before it sends an event, so what is in the
pipes when an event has been read belongs before it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple, Protocol

from belljar.guest.cgroups import Group, remove_when_empty
from belljar.guest.kernelmessages import Violation
from belljar.wire import pipe
from belljar.wire.frames import STDERR, STDOUT

_READ_SIZE: Final = 64 * 1024
_PIPE_SIZE: Final = 1024 * 1024
_CONTROL_READ_SIZE: Final = 256 * 1024
_SEND_LIMIT: Final = 16 * 1024 * 1024  # of messages that a busy kernel has not read
_LET_GO_S: Final = 1.0  # between the end of its control socket and the end of the process
_STATUS_WAIT_S: Final = 1.0
_MAX_LAST_EVENTS: Final = pipe.MAX_JSON + pipe.MAX_BLOB


class Ending(NamedTuple):
    """How a kernel ended. Code and signal are both None if nobody could tell."""

    code: int | None
    signal: int | None
    out_of_memory: bool
    peak_memory: int | None
    violation: str | None


class Owner(Protocol):
    def on_event(self, kernel: Kernel, message: dict[str, Any], blob: bytes) -> None: ...
    def on_text(self, kernel: Kernel, stream: int, data: bytes) -> None: ...
    def on_death(self, kernel: Kernel, ending: Ending) -> None: ...


class Ends:
    """Both ends of a kernel's descriptors, before it runs. `theirs` is control, stdout, stderr."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self.control, control = (stack.enter_context(sock) for sock in socket.socketpair())
            outputs = []
            self._writers = [control.fileno()]
            for _ in range(2):
                reader, writer = os.pipe()
                stack.callback(os.close, reader)
                stack.callback(os.close, writer)
                os.set_blocking(reader, False)
                with suppress(OSError):  # what a program in a hurry writes at once; the default is a lot of switching to and fro
                    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
                outputs.append(reader)
                self._writers.append(writer)
            self.control.setblocking(False)
            self.outputs = {STDOUT: outputs[0], STDERR: outputs[1]}
            control.detach()
            stack.pop_all()

    @property
    def theirs(self) -> tuple[int, int, int]:
        control, stdout, stderr = self._writers
        return control, stdout, stderr

    def given(self) -> None:
        """The other process has its own copies now."""
        for fd in self._writers:
            os.close(fd)
        self._writers = []

    def close(self) -> None:
        self.given()
        self.control.close()
        for fd in self.outputs.values():
            os.close(fd)


class Kernel:
    """Runs from the start; `on_death` is the last that its owner hears of it."""

    def __init__(self, pid: int, pidfd: int, group: Group, ends: Ends, status: Callable[[], asyncio.Future[int]] | None) -> None:
        self.pid = pid
        self.group = group
        self.owner: Owner | None = None
        self._pidfd = pidfd
        self._status = status  # asks the parent, if that is not us
        self._control = ends.control
        self._outputs = ends.outputs
        # What was written before an event is in the pipe when the event is read, so it is no more than this.
        self._pipe_size = max(fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) for fd in self._outputs.values())
        self._read_size = _READ_SIZE
        self._decoder = pipe.Decoder()
        self._sending = bytearray()
        self._violation: str | None = None
        self._reading: set[int] = set()
        self._paused = False
        self._reads_control = False
        self._ended = False
        self._loop = asyncio.get_running_loop()

    def begin(self, owner: Owner) -> None:
        self.owner = owner
        self._loop.add_reader(self._pidfd, self._on_dead)
        self._read_all()

    # -- for the owner

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        data = pipe.encode(message, blob)
        if self._sending:
            if len(self._sending) > _SEND_LIMIT:
                self._break("it does not read what it is sent")
                return
            self._sending += data
            return
        try:
            sent = self._control.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # it is dying; the end is told by its pidfd
            return
        if sent < len(data):
            self._sending += data[sent:]
            self._loop.add_writer(self._control, self._on_writable)

    def interrupt(self) -> None:
        """SIGINT for the kernel and the programs that it waits for."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGINT)

    def send_signal(self, number: int) -> None:
        if not self._ended:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    def pause(self, paused: bool) -> None:
        """Read nothing for a while: it would only pile up here."""
        if paused != self._paused and not self._ended:
            self._paused = paused
            if paused:
                self._stop_reading()
            else:
                self._read_all()

    def drain(self) -> None:
        """Everything that was written before now."""
        for stream in (STDOUT, STDERR):
            left = self._pipe_size
            while left > 0 and (size := self._read_text(stream)):
                left -= size

    def dispose(self) -> None:
        """End it, and everything it has started. Nobody is told."""
        self.owner = None
        self.group.kill()
        if not self._ended:
            self._stop_reading()
            self._stop_sending()

    # -- output and events

    def _read_all(self) -> None:
        for stream, fd in self._outputs.items():
            self._loop.add_reader(fd, self._read_text, stream)
            self._reading.add(stream)
        self._loop.add_reader(self._control, self._on_control)
        self._reads_control = True

    def _stop_reading(self) -> None:
        for stream in tuple(self._reading):
            self._stop_text(stream)
        if self._reads_control:
            self._reads_control = False
            self._loop.remove_reader(self._control)

    def _stop_text(self, stream: int) -> None:
        if stream in self._reading:
            self._reading.discard(stream)
            self._loop.remove_reader(self._outputs[stream])

    def _read_text(self, stream: int) -> int:
        try:
            data = os.read(self._outputs[stream], self._read_size)
        except BlockingIOError:
            return 0
        if not data:  # closed by the kernel and all its children; what they write later goes nowhere
            self._stop_text(stream)
        elif self.owner is not None:
            self._read_size = _PIPE_SIZE if len(data) == self._read_size else _READ_SIZE
            self.owner.on_text(self, stream, data)
        return len(data)

    def _on_control(self) -> None:
        if self._receive() < 0:
            self._reads_control = False
            self._loop.remove_reader(self._control)
            self._loop.call_later(_LET_GO_S, self._break, "it closed its control socket")

    def _receive(self) -> int:
        """How much was read; -1 at the end of the stream."""
        try:
            data = self._control.recv(_CONTROL_READ_SIZE)
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        if data and self._violation is None:
            try:
                messages = self._decoder.feed(data)
                if messages:
                    self.drain()
                for message, blob in messages:
                    if self.owner is not None:
                        self.owner.on_event(self, message, blob)
            except (pipe.PipeError, Violation) as error:
                self._break(str(error))
        return len(data) or -1

    def _break(self, reason: str) -> None:
        if not self._ended and self._violation is None:
            self._violation = reason
            self.group.kill()

    def _on_writable(self) -> None:
        try:
            del self._sending[: self._control.send(self._sending)]
        except BlockingIOError:
            return
        except OSError:
            self._sending.clear()
        if not self._sending:
            self._loop.remove_writer(self._control)

    def _stop_sending(self) -> None:
        if self._sending:
            self._sending.clear()
            self._loop.remove_writer(self._control)

    # -- the end

    def _on_dead(self) -> None:
        code: int | None = None
        number: int | None = None
        self._loop.remove_reader(self._pidfd)
        if self._status is None:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                code, number = (result.si_status, None) if exited else (None, result.si_status)
            self._end(code, number)
        else:
            self._loop.create_task(self._ask_status(self._status()))

    async def _ask_status(self, status: asyncio.Future[int]) -> None:
        try:
            value = os.waitstatus_to_exitcode(await asyncio.wait_for(status, _STATUS_WAIT_S))
        except (TimeoutError, asyncio.CancelledError, ValueError):
            self._end(None, None)
        else:
            self._end(value if value >= 0 else None, -value if value < 0 else None)

    def _end(self, code: int | None, number: int | None) -> None:
        ending = Ending(
            code,
            number,
            number in (signal.SIGKILL, None) and code is None and self.group.was_out_of_memory(),
            self.group.peak_memory(),
            self._violation,
        )
        self.group.kill()  # what it has started lives only with it
        left = _MAX_LAST_EVENTS
        while self.owner is not None and left > 0 and (size := self._receive()) > 0:
            left -= size
        if self.owner is not None:
            self.drain()
        self._stop_reading()
        self._stop_sending()
        self._ended = True
        os.close(self._pidfd)
        self._control.close()
        for fd in self._outputs.values():
            os.close(fd)
        remove_when_empty(self.group)
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.on_death(self, ending)
