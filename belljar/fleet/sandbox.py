"""One sandbox, as its user holds it: run programs, move files, pause, snapshot, fork, sleep, end.

A handle attaches to its machine when it first needs to, and then is the machine's only user (`SandboxBusy` for others). Letting go
leaves the machine running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from belljar.errors import BelljarError, DeadlineExceeded, HostError, SandboxError, SandboxGone, SandboxNotFound, WrongState
from belljar.fleet.admission import check_fork_count
from belljar.fleet.answers import parse_stats
from belljar.fleet.attaching import adopt_machine, wait_for_lock
from belljar.fleet.capturing import Admit, fork_origin, put_to_sleep, take_snapshot
from belljar.fleet.checks import check_metadata
from belljar.fleet.context import Context, Ticket
from belljar.fleet.contexts import DEFAULT_LANGUAGE, Contexts
from belljar.fleet.costs import host_costs
from belljar.fleet.egress import Egress
from belljar.fleet.execution import Execution
from belljar.fleet.files import Files
from belljar.fleet.launching import ANSWER_DEADLINE_S, Running, host_trouble, set_clock
from belljar.fleet.ports import Ports
from belljar.fleet.processes import Processes
from belljar.fleet.waking import wake_machine
from belljar.store.db import SandboxRecord, SnapshotRecord
from belljar.vm.finishing import finish
from belljar.vm.link import Link
from belljar.vm.machine import Machine

if TYPE_CHECKING:
    from belljar.fleet.sandboxes import Fleet

log = logging.getLogger(__name__)

# How often a silent session is asked whether anyone is there, and how long the answer may take on a loaded host.
KEEPALIVE_S = 20.0
# A lost session is made again for the guest's network too, at first soon; each try holds up other moves for a moment only.
RENEW_S, RENEW_AT_MOST_EVERY_S, RENEW_DEADLINE_S = 0.5, 30.0, 5.0
# How long the news of a process's death may be on its way to us.
DEATH_NOTICE_S = 0.5


class Sandbox:
    """A sandbox. `processes`, `files`, `contexts` and `ports` are its inside, `egress` its way out; the rest is all of it."""

    def __init__(self, fleet: Fleet, context: Context, record: SandboxRecord, running: Running | None = None) -> None:
        self.record = record
        self._fleet = fleet
        self._context = context
        self._folder = context.layout.sandbox(record.id)
        self._running: Running | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._network: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()
        self.processes = Processes(self.link)
        self.files = Files(self.link)
        self.egress = Egress(context, self)
        self.contexts = Contexts(self.link, self.egress.watch)
        self.ports = Ports(self.link)
        if running:
            self._hold(running)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def attached(self) -> bool:
        """Whether this handle has the machine now: then it is awake, running or paused."""
        return self._running is not None

    async def run_code(self, code: str, language: str = DEFAULT_LANGUAGE, **options: Any) -> Execution:
        """Run a cell in the first context of that language, with its state. Options as for `CodeContext.run`."""
        return await self.contexts.run(code, language, **options)

    # -- attaching ----------------------------------------------------------------------------------------------------------

    async def link(self) -> Link:
        """The session with the agent; attaches first if need be."""
        running = await self._attached()
        if running.machine.state == "paused" or running.link is None:
            raise WrongState(f"sandbox {self.id} is paused; resume it first")
        if running.link.lost.done():
            await self._reconnect(running)
        return running.link

    async def _reconnect(self, running: Running, deadline_s: float = ANSWER_DEADLINE_S) -> None:
        """A session that was lost, by a guest's bad bytes or its silence, is followed by a new one: the machine may be well."""
        async with self._moving:
            if running is self._running and running.link and running.link.lost.done():
                running.link = await running.machine.link(deadline_s)
                self._start_network(running)

    async def attach(self) -> None:
        """Become the machine's user now, and serve its network, instead of with the first call that needs it."""
        await self._attached()

    async def _attached(self) -> Running:
        if self._running is not None:
            return self._running
        async with self._moving:
            return await self._held()

    async def _held(self) -> Running:
        """The machine for one move, asked for under `_moving`: the move before may have ended it."""
        if self._running is None:
            await self._attach()
        if self._running is None:
            raise SandboxGone(f"sandbox {self.id} has ended")
        return self._running

    async def _attach(self) -> None:
        self.record = await asyncio.to_thread(self._context.records.get_sandbox, self.id)
        if self.record.state == "hibernated":
            raise WrongState(f"sandbox {self.id} is hibernated; wake it first")
        if self.record.state not in ("running", "paused"):
            raise SandboxGone(f"sandbox {self.id} is {self.record.state}: {self.record.reason or 'it has ended'}")
        lock = await wait_for_lock(self._context, self.id)
        try:
            self._hold(await adopt_machine(self.record, self._folder, lock))
        except SandboxGone as gone:
            await self._fleet.bury(self.id, gone.message)
            raise

    def _hold(self, running: Running) -> None:
        self._running = running
        self._watcher = asyncio.create_task(self._watch(running), name=f"watch {self.id}")
        self._start_network(running)

    def _start_network(self, running: Running) -> None:
        if running.link is not None:
            self._network = asyncio.create_task(self._serve_network(running, running.link), name=f"network {self.id}")

    async def _serve_network(self, running: Running, link: Link) -> None:
        """Answer the guest's asks. When the session is lost, make another one, whether anyone calls or not."""
        try:
            await self.egress.serve(link)
            return
        except BelljarError as problem:
            log.debug("sandbox %s lost its session: %s", self.id, problem.message)
        except Exception:
            log.exception("sandbox %s has lost its network", self.id)
            return
        delay_s = RENEW_S
        while running is self._running and running.link is link:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RENEW_AT_MOST_EVERY_S)
            if running.machine.state == "running":
                with suppress(BelljarError):
                    await self._reconnect(running, RENEW_DEADLINE_S)

    async def _watch(self, running: Running) -> None:
        """Notice a machine that ends, and a guest that no longer answers, so that nobody waits for either for ever."""
        ended = asyncio.create_task(running.machine.wait_ended())
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=KEEPALIVE_S)
                if not ended.done() and running.machine.state == "running" and running.link:
                    await _check_alive(running.link)
            reason = ended.result()
        finally:
            ended.cancel()
        log.warning("sandbox %s ended: %s", self.id, reason)
        self._running, self._watcher = None, None
        running.break_off(SandboxGone(f"sandbox {self.id} ended: {reason}"))
        try:
            await running.kill()
            await self._fleet.bury(self.id, reason)
        except Exception:
            log.exception("sandbox %s could not be buried; the next clean-up tries it again", self.id)

    async def _let_go(self) -> Running | None:
        if self._watcher:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        running, self._running = self._running, None
        if self._network:
            self._network.cancel()
            await asyncio.gather(self._network, return_exceptions=True)
            self._network = None
        return running

    async def detach(self) -> None:
        """Let go of the machine; it lives on."""
        if running := await self._let_go():
            await running.detach()

    # -- moves --------------------------------------------------------------------------------------------------------------

    async def _note(self, state: str, *, durable: bool = False) -> None:
        self.record = await asyncio.to_thread(self._context.records.update_sandbox, self.id, state=state, durable=durable)

    async def pause(self) -> None:
        """Stop the whole machine between two instructions. It keeps its memory and costs no CPU."""
        async with self._moving:
            running = await self._held()
            if running.machine.state != "paused":
                await finish(self._pause(running.machine))

    async def _pause(self, machine: Machine) -> None:
        await machine.pause()
        try:
            await self._note("paused")
        except HostError:  # a full disk: whoever is told that it failed must not find it paused
            await machine.resume()
            raise

    async def resume(self) -> None:
        """Let a paused sandbox run on, as if no time had passed but for the clock."""
        async with self._moving:
            running = await self._held()
            if running.machine.state != "running" or self.record.state != "running":
                await finish(self._resume(running))

    async def _resume(self, running: Running) -> None:
        if running.machine.state != "running":
            await running.machine.resume()
            if running.link is None:
                running.link = await running.machine.link(ANSWER_DEADLINE_S)
                self._start_network(running)
            await set_clock(running.link)
        await self._note("running")

    @asynccontextmanager
    async def _capturing(self, running: Running, what: str) -> AsyncIterator[None]:
        """A capture that failed because its machine died under it says that, and not which file or process it missed."""
        try:
            with host_trouble(what):
                yield
        except (HostError, SandboxError) as problem:
            if await running.machine.ends_within(DEATH_NOTICE_S):
                raise SandboxGone(f"sandbox {self.id} ended in the middle of it: {what}") from problem
            raise

    async def snapshot(self, metadata: Mapping[str, str] | None = None, *, admit: Admit | None = None) -> SnapshotRecord:
        """Save the whole machine for later; it runs on. Any number of sandboxes can be created from it.

        `admit` is told how many bytes the snapshot takes before it exists, and may refuse.
        """
        labels = check_metadata(metadata)
        async with self._moving:
            running = await self._held()
            async with self._capturing(running, "the snapshot could not be written"):
                return await take_snapshot(self._context, self.record, running.machine, labels, admit)

    async def fork(
        self, count: int = 1, metadata: Mapping[str, str] | None = None, *, ticket: Ticket | None = None
    ) -> list[Sandbox]:
        """Children with this sandbox's memory, files and running processes of one instant. The parent runs on."""
        check_fork_count(count)
        labels = check_metadata(metadata)
        with self._fleet.queue.admitted(count):
            async with self._moving, AsyncExitStack() as stack:
                running = await self._held()
                await stack.enter_async_context(self._capturing(running, "the fork could not be staged"))
                stage = partial(fork_origin, self._context, self.record, running.machine, count)
                origin = await self._fleet.starts.when_there_is_room(lambda: stack.enter_async_context(stage()))
                return await self._fleet.starts.launch_children(self.record, origin, count, labels, ticket)

    async def hibernate(self) -> None:
        """Save memory and devices to disk and end the machine: it costs no memory, and nothing is lost."""
        async with self._moving:
            self.record = await asyncio.to_thread(self._context.records.get_sandbox, self.id)
            if self.record.state == "hibernated":
                return
            running = await self._held()
            async with self._capturing(running, "the sleeping machine could not be written"):
                await put_to_sleep(self._context, self.record, running.machine)
            await finish(self._fall_asleep())

    async def _fall_asleep(self) -> None:
        await self._note("hibernated", durable=True)
        if held := await self._let_go():
            held.break_off(WrongState(f"sandbox {self.id} was put to sleep meanwhile; what runs in it goes on when it is woken"))
            await held.kill()

    async def wake(self) -> None:
        """Bring a hibernated sandbox back, as it was. Does nothing if it is awake."""
        async with self._moving:
            self.record = await asyncio.to_thread(self._context.records.get_sandbox, self.id)
            if self.record.state in ("running", "paused"):
                return
            if self.record.state != "hibernated":
                raise WrongState(f"sandbox {self.id} is {self.record.state} and cannot be woken")
            with self._fleet.queue.admitted():
                lock = await wait_for_lock(self._context, self.id)
                note = partial(self._note, "running", durable=True)
                await wake_machine(self._context, self._fleet, self.record, lock, note, self._hold)

    async def kill(self) -> None:
        """End the sandbox and everything of it. Idempotent; whatever else is under way fails."""
        try:
            await self._fleet.kill(self.id)
        except SandboxNotFound:
            await self.abandon()

    async def abandon(self) -> None:
        """End the machine if this handle has it."""
        if running := await self._let_go():
            running.break_off(SandboxGone(f"sandbox {self.id} was ended meanwhile"))
            await running.kill()

    # -- looking ------------------------------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """CPU, memory and disk as the guest sees them, and what they cost the host."""
        link = await self.link()
        guest = parse_stats(await link.request("stats", {}, timeout_s=ANSWER_DEADLINE_S))
        running = await self._attached()
        return {"guest": guest, "host": await asyncio.to_thread(host_costs, running.machine.ram(), self._folder)}


async def _check_alive(link: Link) -> None:
    """A guest that does not answer loses its session, so that whoever waits on it learns of it."""
    try:
        await link.ping(ANSWER_DEADLINE_S)
    except DeadlineExceeded as silence:
        link.fail(silence)
    except BelljarError:
        pass  # the link is lost already, and its users know
