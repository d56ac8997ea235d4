"""The agent: reads the wire, hands each channel to the operation it asks for, and writes the answers.

One process, one loop. Operations that only compute or fork run at once; those that touch files run as tasks over worker
threads. Nothing that one channel does may end another: an exception becomes a RESET on its own channel.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from belljar.guest import files, stats, thaw, tree, watch
from belljar.guest.channel import Channel, Lost
from belljar.guest.context import Context
from belljar.guest.failure import Failure, from_os_error, invalid
from belljar.guest.interpreters import Interpreters
from belljar.guest.net.network import Network
from belljar.guest.params import Params
from belljar.guest.port import Port
from belljar.guest.processes import Processes
from belljar.wire.frames import CREDIT, DATA, END, HELLO, OPEN, RESET, Event, WireError, decode_json
from belljar.wire.mux import HIGH_WATER, Mux

GENERATION = 1

# An operation answers at once with a message, or with None if it goes on by itself, or is a coroutine that ends in one of these.
Answer = dict[str, Any] | None
Operation = Callable[[Channel, Params], Answer | Awaitable[Answer]]


class Agent:
    def __init__(self, fd: int, context: Context, on_eof: Callable[[], None]) -> None:
        self.mux = Mux(host=False)
        self._context = context
        self._channels: dict[int, Channel] = {}
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._operations = self._table(context)
        self.port = Port(fd, self._on_bytes, self._take_output, on_eof)
        context.workers.warm()
        context.launcher.prepare()
        self.mux.announce()
        self.port.flush()

    def _table(self, context: Context) -> dict[str, Operation]:
        operations: dict[str, Operation] = {
            "hello": self._hello,
            "thaw": lambda channel, params: thaw.thaw(context, params),
        }
        operations.update(Processes(context).operations())
        operations.update(Network(context).operations())
        interpreters = Interpreters(context)
        context.after_thaw.append(interpreters.thawed)
        operations.update(interpreters.operations())
        for module in (files, tree, watch, stats):
            for name, operation in module.OPERATIONS.items():
                operations[name] = self._bind(operation)
        return operations

    def _bind(self, operation: Callable[[Context, Channel, Params], Awaitable[Answer]]) -> Operation:
        return lambda channel, params: operation(self._context, channel, params)

    def _hello(self, channel: Channel, params: Params) -> dict[str, Any]:
        return {
            "generation": GENERATION,
            "agent_start": self._context.agent_start,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "python": platform.python_version(),
            "kernel": os.uname().release,
        }

    # -- the wire

    def _on_bytes(self, data: bytes) -> None:
        try:
            for event in self.mux.receive(data):
                self._dispatch(event)
        except WireError as error:
            print(f"belljar agent: the host broke the protocol: {error}", file=sys.stderr, flush=True)
            self._lose_session()
            self.mux.announce()
        self.port.flush()

    def _dispatch(self, event: Event) -> None:
        kind = event.kind
        if kind == OPEN:
            self._open(event)
            return
        if kind == HELLO:
            self._lose_session()
            return
        channel = self._channels.get(event.channel)
        if channel is None:
            return
        try:
            if kind == DATA:
                channel.arrive(event.payload)
            elif kind == END:
                channel.peer_ended()
                if channel.ended:  # else the mux may only be ahead of us, and a RESET is still to be told
                    self.forget_if_over(channel)
            elif kind == CREDIT:
                channel.room_again()
            elif kind == RESET:
                self.forget(channel)
                channel.leave(by_host=True)
            else:
                channel.message_arrived(event.payload)
        except Exception as error:
            self._failed(channel, error)

    def _lose_session(self) -> None:
        """The host starts afresh: nothing of the old session may go out any more. Processes run on."""
        self.port.drop_output()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.leave(by_host=False)

    # -- channels

    def _open(self, event: Event) -> None:
        channel = self._channels[event.channel] = Channel(self, event.channel)
        try:
            body = decode_json(event.payload)
            name = body.get("op")
            operation = self._operations.get(name) if isinstance(name, str) else None
            if operation is None:
                raise invalid(f"this agent has no operation {name!r}")
            answer = operation(channel, Params(body))
            if answer is None or isinstance(answer, dict):
                self._answer(channel, answer)
            else:
                channel.task = self._loop.create_task(self._finish(channel, answer))
        except Exception as error:
            self._failed(channel, error)

    async def _finish(self, channel: Channel, operation: Awaitable[Answer]) -> None:
        try:
            self._answer(channel, await operation)
        except Lost:
            pass
        except Exception as error:
            self._failed(channel, error)

    def _answer(self, channel: Channel, answer: Answer) -> None:
        if answer is not None:
            channel.message(answer)
            channel.end()

    def _failed(self, channel: Channel, error: Exception) -> None:
        if isinstance(error, WireError):
            error = invalid(str(error))
        elif isinstance(error, OSError):
            error = from_os_error(error, os.fsdecode(error.filename) if error.filename else "the guest")
        elif not isinstance(error, Failure):
            traceback.print_exception(error)
            sys.stderr.flush()
            error = Failure("internal", f"the agent failed: {type(error).__name__}: {error}")
        channel.fail(error)

    def forget(self, channel: Channel) -> None:
        channel.open = False  # its number may be another channel's in the next session
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    def forget_if_over(self, channel: Channel) -> None:
        if not self.mux.is_open(channel.number):
            self.forget(channel)

    # -- output

    def flush_soon(self) -> None:
        """What one round of the loop produces goes out in one write."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.port.flush()

    def _take_output(self) -> bytes:
        if self.mux.output_size >= HIGH_WATER:
            self._loop.call_soon(self._wake_all)
        return self.mux.take_output()

    def _wake_all(self) -> None:
        for channel in list(self._channels.values()):
            channel.room_again()


async def serve(fd: int, context: Context, *, until_eof: bool) -> None:
    """Run the agent on `fd`: a virtio port, where an end of file only means that no host is there now, or a socket."""
    ended = asyncio.Event()
    Agent(fd, context, ended.set if until_eof else lambda: None)
    await ended.wait()
