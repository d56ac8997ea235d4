"""All processes the agent has started, and the operations on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.failure import Failure, invalid
from belljar.guest.params import Params
from belljar.guest.process import Process
from belljar.guest.ring import TOTAL_SIZE
from belljar.guest.starting import Start
from belljar.wire.frames import STDERR, STDOUT

_MAX_RUNNING: Final = 128
_MAX_EXITED: Final = 100
_KEEP_SHORT: Final = 64 * 1024  # of a ring that must make room for others
_MAX_OFFSET: Final = 1 << 62


class Processes:
    """The table. Those that have exited stay for a while, so that exit code and output can still be fetched."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made = 0
        self._starting = 0
        self._running: dict[str, Process] = {}
        self._exited: dict[str, Process] = {}
        self._emptying: list[Callable[[], bool]] = []  # removals of groups in which something still lives

    def operations(self) -> dict[str, Callable[[Channel, Params], dict[str, Any] | None]]:
        return {
            "process.start": self.start,
            "process.attach": self.attach,
            "process.list": self.list,
            "process.signal": self.signal,
            "process.kill": self.kill,
            "process.resize": self.resize,
            "process.write": self.write,
        }

    # -- starting

    def start(self, channel: Channel, params: Params) -> None:
        if len(self._running) >= _MAX_RUNNING:
            raise Failure("conflict", f"{_MAX_RUNNING} processes started from outside are running already; end some first")
        self._made += 1
        start = Start(self._context, params, channel, f"p{self._context.agent_start}-{self._made}")
        start.run(self._on_exit, lambda process: self._on_running(start, process, channel))

    def _on_running(self, start: Start, process: Process, channel: Channel) -> None:
        self._running[process.id] = process
        if start.timeout_s is not None:
            process.limit(start.timeout_s)
        channel.message({"started": {"id": process.id, "pid": process.pid}})
        if start.background:
            channel.end()
        elif channel.open:
            process.attach(channel, {STDOUT: 0, STDERR: 0})
            channel.on_left = lambda by_host: self._on_left(process, by_host)
            self._connect_stdin(process, channel, end_closes=True)
        process.begin()
        # While the program begins on another processor; before its exit is told, after which a host may take a snapshot.
        asyncio.get_running_loop().call_soon(self._context.launcher.prepare)

    def _on_left(self, process: Process, by_host: bool) -> None:
        process.detach()
        if by_host:
            process.group.kill()

    def _connect_stdin(self, process: Process, channel: Channel, end_closes: bool) -> None:
        stdin = process.stdin

        def on_data(data: bytes) -> None:
            if stdin is None:
                channel.consumed(len(data))
            else:
                stdin.write(data, lambda size, taken: channel.consumed(size))

        def on_end() -> None:
            if not end_closes:
                process.detach()
                channel.end()
            elif stdin is not None:
                stdin.end()

        channel.on_end = on_end
        channel.take_over(on_data)

    def _on_exit(self, process: Process) -> None:
        del self._running[process.id]
        self._exited[process.id] = process
        while len(self._exited) > _MAX_EXITED:
            oldest = self._exited.pop(next(iter(self._exited)))
            oldest.detach()
            oldest.discard()
        self._emptying = [remove for remove in (*self._emptying, process.group.remove) if not remove()]
        self._bound_memory()

    def _bound_memory(self) -> None:
        """All rings together stay below TOTAL_SIZE: 128 running ones below 64 KiB each always fit."""
        processes = [*self._exited.values(), *self._running.values()]
        total = sum(len(output.ring) for process in processes for output in process.outputs)
        for process in processes:
            for output in process.outputs:
                if total <= TOTAL_SIZE:
                    return
                before = len(output.ring)
                output.shrink(_KEEP_SHORT)
                total -= before - len(output.ring)

    # -- operations

    def _get(self, params: Params) -> Process:
        name = params.text("id")
        process = self._running.get(name) or self._exited.get(name)
        if process is None:
            raise Failure("process_not_found", f"there is no process {name!r}; it has ended long ago, or never was")
        return process

    def attach(self, channel: Channel, params: Params) -> None:
        process = self._get(params)
        offsets = {stream: params.find_integer(f"{key}_offset", 0, _MAX_OFFSET) for key, stream in _STREAMS.items()}
        process.attach(channel, offsets)
        positions = process.positions()
        attached = {"id": process.id, "pid": process.pid, "dropped": process.dropped()}
        channel.message({"attached": {**attached, **{f"{key}_offset": value for key, value in positions.items()}}})
        channel.on_left = lambda by_host: process.detach()
        self._connect_stdin(process, channel, end_closes=False)
        process.pump()

    def list(self, channel: Channel, params: Params) -> dict[str, Any]:
        return {"processes": [process.describe() for process in (*self._exited.values(), *self._running.values())]}

    def signal(self, channel: Channel, params: Params) -> dict[str, Any]:
        process = self._get(params)
        number = params.find_integer("signal", 1, 64)
        if number is None:
            raise invalid("`signal` is missing")
        process.send_signal(number, params.flag("tree"))
        return {}

    def kill(self, channel: Channel, params: Params) -> dict[str, Any]:
        self._get(params).group.kill()
        return {}

    def resize(self, channel: Channel, params: Params) -> dict[str, Any]:
        process = self._get(params)
        process.resize(params.integer("rows", 24, 1, 65535), params.integer("cols", 80, 1, 65535))
        return {}

    def write(self, channel: Channel, params: Params) -> None:
        process, eof = self._get(params), params.flag("eof")
        stdin = process.stdin
        if stdin is None or stdin.closed:
            raise Failure("conflict", f"process {process.id} takes no input: it was started without, or has closed it")
        total, pending, ended = 0, 0, False

        def on_data(data: bytes) -> None:
            nonlocal pending
            pending += 1
            stdin.write(data, on_written)

        def on_written(size: int, taken: bool) -> None:
            nonlocal total, pending
            pending -= 1
            if not taken:
                channel.fail(Failure("conflict", f"process {process.id} has closed its input", written=total))
                return
            total += size
            channel.consumed(size)
            finish()

        def on_end() -> None:
            nonlocal ended
            ended = True
            finish()

        def finish() -> None:
            if ended and not pending and channel.open:
                if eof:
                    stdin.end()
                channel.message({"written": total})
                channel.end()

        channel.on_end = on_end
        channel.take_over(on_data)


_STREAMS: Final = {"stdout": STDOUT, "stderr": STDERR}
