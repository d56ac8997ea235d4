"""The place of a context's kernel: empty, with one that starts, or with one that is ready.

A start can be given up at any time, by a newer one or by the end of the context; what comes of it then is thrown away.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Final, Protocol

from belljar.guest.context import Context
from belljar.guest.execution import Wishes
from belljar.guest.failure import Failure
from belljar.guest.kernelmessages import parse_variables
from belljar.guest.kernelprocess import Kernel, Owner
from belljar.guest.kernelstart import COLD_DEADLINE_S, Setting, Starter

ANSWER_DEADLINE_S: Final = 5.0
_INLINE_CODE: Final = 64 * 1024  # longer code travels as a blob
_KEPT_BETWEEN_CELLS: Final = 64 * 1024
_RESEED: Final = signal.SIGUSR1


class Tenant(Owner, Protocol):
    """Whose kernel it is. A kernel's events go straight to it; those about a start come back to the slot."""

    def on_kernel_ready(self) -> None: ...
    def on_kernel_not_ready(self, failure: Failure) -> None: ...


class KernelSlot:
    def __init__(self, name: str, setting: Setting, context: Context, starter: Starter, tenant: Tenant) -> None:
        self.kernel: Kernel | None = None
        self._name = name  # of the context
        self._setting = setting
        self._context = context
        self._starter = starter
        self._tenant = tenant
        self._number = 0  # of the message to the kernel, counted from its start
        self._count = 0  # of the cell, likewise; silent ones do not count
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._start: asyncio.Task[None] | None = None
        self._said_at_start = b""
        self._between: list[tuple[int, bytes]] = []  # written while no cell ran
        self._variables: asyncio.Future[list[dict[str, Any]]] | None = None
        self._interrupts_by_message = False
        self._loop = asyncio.get_running_loop()

    @property
    def is_starting(self) -> bool:
        return self._start is not None

    @property
    def is_used(self) -> bool:
        """Whether its kernel was given any cell."""
        return self._number > 0

    # -- starting

    async def start(self) -> dict[str, Any]:
        """Until the kernel is ready. Returns what it says of itself."""
        start, ready = self.begin()
        await asyncio.wait([start])
        if ready.done() and not ready.cancelled():
            return ready.result()  # raises what went wrong
        raise Failure("conflict", f"context {self._name} was restarted or deleted while it started")

    def begin(self) -> tuple[asyncio.Task[None], asyncio.Future[dict[str, Any]]]:
        """The same without waiting; its tenant is told."""
        self.give_up_start()
        self._number = self._count = 0
        self._said_at_start = b""
        self._between.clear()
        ready = self._ready = self._loop.create_future()
        start = self._start = self._loop.create_task(self._start_later(ready))
        return start, ready

    def give_up_start(self) -> None:
        if self._ready is not None:
            self._ready.cancel()
        self._ready = self._start = None

    async def _start_later(self, ready: asyncio.Future[dict[str, Any]]) -> None:
        kernel: Kernel | None = None
        try:
            kernel = await self._starter.start(self._name, self._setting)
            kernel.begin(self._tenant)
            if self._ready is not ready:  # restarted or deleted meanwhile
                kernel.dispose()
                return
            self.kernel = kernel
            self._tell(self._environment(), self._context.resolve(self._setting.cwd or ""))
            async with asyncio.timeout(COLD_DEADLINE_S):
                await asyncio.shield(ready)
        except TimeoutError:
            self._not_ready(ready, Failure("sandbox_error", f"the {self._language} kernel did not get ready in time"))
        except Failure as failure:
            self._not_ready(ready, failure)
        except OSError as error:
            self._not_ready(ready, Failure("sandbox_error", f"the kernel could not be started: {error.strerror}"))
        except asyncio.CancelledError:  # of `ready`: somebody gave this start up
            if kernel is not None:
                kernel.dispose()
            raise
        if self._ready is ready:
            self._start = None
            if self.kernel is not None:
                self._tenant.on_kernel_ready()

    def _not_ready(self, ready: asyncio.Future[dict[str, Any]], failure: Failure) -> None:
        if not ready.done():
            ready.set_exception(failure)
        ready.exception()  # whoever cares has it; nobody else has to
        if self._ready is ready:
            self.drop()
            self._tenant.on_kernel_not_ready(failure)

    def drop(self) -> None:
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            kernel.dispose()
        if self._variables is not None and not self._variables.done():
            self._variables.set_exception(Failure("conflict", f"context {self._name} had to be started afresh"))

    def _environment(self) -> dict[str, str]:
        return self._context.environment(self._setting.account, self._setting.env)

    @property
    def _language(self) -> str:
        return self._setting.language.name

    # -- telling it

    def run(self, kernel: Kernel, wishes: Wishes) -> tuple[int, int | None]:
        """Give it a cell. Returns the number that names it to the kernel, and the one that names it to people."""
        self._number += 1
        self._count += not wishes.silent
        message = {"do": "run", "n": self._number, "code": wishes.code, "stdin": wishes.stdin, "changes": wishes.changes}
        if wishes.silent:
            message["count"] = False
        if len(wishes.code) <= _INLINE_CODE:
            kernel.send(message)
        else:
            kernel.send({**message, "code": None}, wishes.code.encode("utf-8", "surrogatepass"))
        return self._number, None if wishes.silent else self._count

    def interrupt(self, number: int) -> None:
        """Where a signal would not do for the kernel, the programs that it waits for still get it."""
        if self.kernel is not None:
            self.kernel.interrupt()
            if self._interrupts_by_message:
                self.kernel.send({"do": "interrupt", "n": number})

    def thawed(self, env: dict[str, str], cwd: str | None) -> None:
        """This machine is a copy: other defaults, and other random numbers."""
        if self.kernel is None:
            return
        self._tell(env, cwd)
        if self._language == "python":
            self.kernel.send_signal(_RESEED)
        else:
            self.kernel.send({"do": "reseed"})

    def _tell(self, env: dict[str, str], cwd: str | None) -> None:
        if self.kernel is not None and (env or cwd is not None):
            self.kernel.send({"do": "env", "set": env, "cwd": cwd})

    async def ask_variables(self) -> list[dict[str, Any]]:
        if self._variables is None or self._variables.done():
            self._variables = self._loop.create_future()
            if self.kernel is not None:
                self.kernel.send({"do": "variables"})
        try:
            return await asyncio.wait_for(asyncio.shield(self._variables), ANSWER_DEADLINE_S)
        except TimeoutError:
            raise Failure("conflict", f"context {self._name} is busy; ask again when its cell is done") from None

    # -- what it says beside cells

    def on_text(self, stream: int, data: bytes) -> None:
        if self._start is not None:
            self._said_at_start = (self._said_at_start + data)[-2048:]
        else:
            self._between.append((stream, data))
            while sum(len(kept) for _, kept in self._between) > _KEPT_BETWEEN_CELLS or len(self._between) > 1024:
                self._between.pop(0)

    def take_text(self) -> list[tuple[int, bytes]]:
        """What was written since the last cell; the next one shows it."""
        between, self._between = self._between, []
        return between

    def on_ready(self, message: dict[str, Any]) -> None:
        if self._ready is not None and not self._ready.done():
            self._said_at_start = b""
            self._interrupts_by_message = message.get("interrupt") == "message"
            self._ready.set_result({"version": str(message.get("version"))[:100]})

    def on_variables(self, message: dict[str, Any]) -> None:
        if self._variables is not None and not self._variables.done():
            self._variables.set_result(parse_variables(message.get("variables")))

    def on_death_at_start(self) -> None:
        said = self._said_at_start.decode(errors="replace").strip()
        if self._ready is not None and not self._ready.done():
            message = f"the {self._language} kernel ended before it was ready: {said or 'it said nothing'}"
            self._ready.set_exception(Failure("sandbox_error", message))
