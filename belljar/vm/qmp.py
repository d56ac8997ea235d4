"""A QMP client: commands go out numbered, replies come back matched, events are handed on.

The socket is driven raw instead of through asyncio streams because QMP takes file descriptors as ancillary data.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belljar.errors import DeadlineExceeded, SandboxError, SandboxGone, VmmRefused
from belljar.vm.sockets import connect_unix

# A VMM that a guest has taken over may send anything; a line longer than this is not QMP.
MAX_LINE = 1 << 20


class Qmp:
    """One monitor connection. `on_event` is called with each event's name and data, from the event loop."""

    def __init__(self, sock: socket.socket, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._sock = sock
        self._on_event = on_event
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 0
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken: SandboxError | None = None
        self._reader = asyncio.create_task(self._read_forever(), name="qmp-reader")

    @classmethod
    async def connect(cls, path: Path, on_event: Callable[[str, dict[str, Any]], None], deadline_s: float) -> Qmp:
        """Connect to a listening monitor and leave its negotiation mode."""
        qmp = cls(await connect_unix(path), on_event)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(qmp._greeted)
                await qmp.run("qmp_capabilities", deadline_s=deadline_s)
        except TimeoutError:
            await qmp.aclose()
            raise DeadlineExceeded(f"the VMM's monitor did not greet within {deadline_s:g} s") from None
        except BaseException:
            await qmp.aclose()
            raise
        return qmp

    async def run(
        self, command: str, arguments: dict[str, Any] | None = None, *, fd: int | None = None, deadline_s: float = 10
    ) -> Any:
        """Run one command; `fd` travels along with it."""
        if self._broken:
            raise self._broken
        self._next_id += 1
        number = self._next_id
        line = json.dumps({"execute": command, "arguments": arguments or {}, "id": number}).encode() + b"\n"
        reply = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(deadline_s):
                await self._send(line, fd)
                return await reply
        except TimeoutError:
            raise DeadlineExceeded(f"the VMM did not answer {command!r} within {deadline_s:g} s") from None
        except OSError as problem:
            raise SandboxGone(f"the VMM's monitor broke: {problem.strerror}") from problem
        finally:
            self._pending.pop(number, None)

    async def _send(self, line: bytes, fd: int | None) -> None:
        if fd is None:
            await asyncio.get_running_loop().sock_sendall(self._sock, line)
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        sent = self._sock.sendmsg([line], rights)
        if sent < len(line):
            await asyncio.get_running_loop().sock_sendall(self._sock, line[sent:])

    async def _read_forever(self) -> None:
        loop = asyncio.get_running_loop()
        pending = b""
        try:
            while data := await loop.sock_recv(self._sock, 65536):
                *lines, pending = (pending + data).split(b"\n")
                if len(pending) > MAX_LINE:
                    raise ValueError("line too long")
                for line in lines:
                    if line.strip():
                        self._dispatch(json.loads(line))
            error = SandboxGone("the VMM closed its monitor: the machine has ended")
        except OSError as problem:
            error = SandboxGone(f"the VMM's monitor broke: {problem.strerror}")
        except (ValueError, RecursionError) as problem:
            error = SandboxGone(f"the VMM's monitor broke: {problem}")
        self._break(error)

    def _dispatch(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ValueError("not an object")
        if "QMP" in message and not self._greeted.done():
            self._greeted.set_result(None)
        elif "event" in message:
            data = message.get("data")
            self._on_event(str(message["event"]), data if isinstance(data, dict) else {})
        elif isinstance(number := message.get("id"), int) and (reply := self._pending.get(number)) and not reply.done():
            if "error" in message:
                reply.set_exception(VmmRefused(f"the VMM refused: {str(message['error'])[:500]}"))
            else:
                reply.set_result(message.get("return"))

    def _break(self, error: SandboxError) -> None:
        self._broken = error
        for waiting in [self._greeted, *self._pending.values()]:
            if not waiting.done():
                waiting.set_exception(error)
        self._greeted.exception()  # seen, even if nobody waits for the greeting any more

    async def aclose(self) -> None:
        """Drop the connection; the VMM runs on and takes the next one."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._break(SandboxGone("the monitor connection was closed"))
        self._sock.close()
