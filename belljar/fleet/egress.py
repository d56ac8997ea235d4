"""What one sandbox may connect to, as its user sees and changes it. It outlives sessions, and is remembered in the record."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from belljar.egress.authority import Authority
from belljar.egress.gateway import Gateway
from belljar.egress.log import Connection, Counters
from belljar.egress.outlet import Outlet
from belljar.egress.policy import Limits, Policy, parse_policy
from belljar.egress.secrets import Secrets
from belljar.errors import BelljarError, DeadlineExceeded, InvalidInput, WrongState
from belljar.fleet.context import Context
from belljar.fleet.launching import ANSWER_DEADLINE_S
from belljar.store.db import SandboxRecord
from belljar.vm.link import Link

# What is moved in between is not counted if the owner is killed.
SAVE_USAGE_S = 15.0
# The guest's answer, and the making of an authority on a busy host.
READY_DEADLINE_S = ANSWER_DEADLINE_S + 30.0
CUT_FOR_SECRETS = "the secrets for this host were changed"


class Owner(Protocol):
    """What is used of the sandbox."""

    record: SandboxRecord

    async def attach(self) -> None: ...
    async def link(self) -> Link: ...


class Egress:
    """The outbound traffic of one sandbox. Changes take effect at once, and are kept for the next owner."""

    def __init__(self, context: Context, owner: Owner) -> None:
        self._context = context
        self._owner = owner
        self._changing = asyncio.Lock()
        self._told = asyncio.Event()  # the guest was told whom to trust in this session
        self._distrust: BelljarError | None = None
        record = owner.record
        policy, secrets = _policy_of(context, record), Secrets(record.egress_secrets)
        self._outlet = Outlet(context.ground, policy, secrets, None, self._on_denied, record.egress_bytes)

    # -- looking ------------------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self._outlet.policy

    @property
    def limits(self) -> Limits:
        """Those in force: the stricter of the policy's and the server's."""
        return self._outlet.usage.limits

    @property
    def secrets(self) -> list[dict[str, str]]:
        """Host and header of each; values are never shown."""
        return self._outlet.secrets.shown()

    @property
    def counters(self) -> Counters:
        return self._outlet.log.counters

    def log(self) -> list[Connection]:
        """The last connections that were asked for, oldest first."""
        return self._outlet.log.lines()

    def watch(self) -> DenialWatch:
        return DenialWatch(self._outlet)

    # -- changing -----------------------------------------------------------------------------------------------------------

    async def set_policy(self, policy: object) -> Policy:
        """From now on. Connections that are open and no longer allowed are cut."""
        wanted = parse_policy(policy)
        async with self._changing:
            await self._hold()
            await self._keep(egress=wanted.to_json())
            self._outlet.set_policy(wanted)
        return wanted

    async def set_secret(self, host: str, header: str, value: str) -> None:
        """Add `header: value` to every HTTPS request for `host` (or `host:port`); the guest never sees the value."""
        async with self._changing:
            await self._change_secrets(self._outlet.secrets.with_secret(host, header, value))

    async def remove_secret(self, host: str, header: str) -> None:
        async with self._changing:
            await self._change_secrets(self._outlet.secrets.without(host, header))

    async def _change_secrets(self, secrets: Secrets) -> None:
        await self._hold()
        if self._owner.record.state == "paused":
            raise WrongState(f"sandbox {self._owner.record.id} is paused, and must be told whom to trust; resume it first")
        await self._keep(egress_secrets=secrets.to_json())
        before, self._outlet.secrets = self._outlet.secrets, secrets
        if self._owner.record.state == "running":
            await self._tell_trust(await self._owner.link())
        for connection in list(self._outlet.open):
            place = (connection.names[0] if connection.names else "", connection.line.port or 0)
            if before.headers(*place) != secrets.headers(*place):
                connection.cut(CUT_FOR_SECRETS)

    async def _hold(self) -> None:
        """Only the process that holds a machine serves its network, so only that one can change it."""
        if self._owner.record.state in ("running", "paused"):
            await self._owner.attach()

    async def _keep(self, *, durable: bool = True, **changes: Any) -> None:
        update = self._context.records.update_sandbox
        self._owner.record = await asyncio.to_thread(lambda: update(self._owner.record.id, durable=durable, **changes))

    # -- sessions -----------------------------------------------------------------------------------------------------------

    async def serve(self, link: Link) -> None:
        """Answer the guest's asks on this link. Raises what the link is lost with; returns if the guest has no network."""
        self._refresh()
        self._told.clear()
        self._distrust = None
        try:
            await self._tell_trust(link)
        except BelljarError as problem:
            self._distrust = problem
        finally:
            self._told.set()
        saving = asyncio.create_task(self._save_usage_often())
        try:
            await Gateway(link, self._outlet).serve()
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            await self._save_usage()

    async def _save_usage_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_USAGE_S)
            await self._save_usage()

    async def _save_usage(self) -> None:
        """How much was moved, for whoever holds the sandbox next: a limit in all is one over all of them."""
        used = self._outlet.usage.used_bytes
        if used != self._owner.record.egress_bytes:
            with suppress(BelljarError):  # it was killed: then nobody will ask
                await self._keep(durable=False, egress_bytes=used)

    async def ready(self) -> None:
        """Wait until a new guest trusts what its secrets need. Without secrets there is nothing to wait for."""
        if self._outlet.secrets:
            try:
                async with asyncio.timeout(READY_DEADLINE_S):
                    await self._told.wait()
            except TimeoutError:  # whoever serves the network is gone: the sandbox was killed at the same moment
                raise DeadlineExceeded("the guest could not be told whom to trust") from None
            if self._distrust is not None:
                raise self._distrust

    def _refresh(self) -> None:
        """The record may have been changed while another process held the machine."""
        record = self._owner.record
        policy = _policy_of(self._context, record)
        if policy != self._outlet.policy:
            self._outlet.set_policy(policy)
        self._outlet.secrets = Secrets(record.egress_secrets)
        self._outlet.usage.used_bytes = max(self._outlet.usage.used_bytes, record.egress_bytes)

    async def _tell_trust(self, link: Link) -> None:
        """Have the guest trust this sandbox's own authority while there are secrets, and no authority of a parent's."""
        record, pem = self._owner.record, None
        if self._outlet.secrets:
            self._outlet.authority = await self._find_authority()
            pem = self._outlet.authority.certificate
        elif not (record.egress_authority or record.parent or record.origin_snapshot):
            return
        try:
            await link.request("net.trust", {"pem": pem}, ANSWER_DEADLINE_S)
        except InvalidInput:
            if pem is not None:
                raise  # an agent from before there was a network

    async def _find_authority(self) -> Authority:
        if self._outlet.authority is None:
            if not self._owner.record.egress_authority:
                made = await asyncio.to_thread(Authority.create, self._owner.record.id)
                await self._keep(egress_authority=made.save())
            self._outlet.authority = await asyncio.to_thread(Authority.load, self._owner.record.egress_authority)
        return self._outlet.authority

    def _on_denied(self, line: Connection) -> None:
        if self._context.on_denied is not None:
            self._context.on_denied(self._owner.record.id, line)


class DenialWatch:
    """What was refused since it was made."""

    def __init__(self, outlet: Outlet) -> None:
        self._log = outlet.log
        self._mark = outlet.log.mark()

    def notes(self) -> tuple[str, ...]:
        return tuple(self._log.denied_since(self._mark))


def _policy_of(context: Context, record: SandboxRecord) -> Policy:
    return parse_policy(record.egress) if record.egress else context.ground.policy
