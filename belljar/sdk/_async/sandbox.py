"""One sandbox, as its user holds it."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from belljar.sdk._async.adaptors import CancelEvent, Creatable
from belljar.sdk._async.client import AsyncClient, get_default_client
from belljar.sdk._async.contexts import AsyncContexts
from belljar.sdk._async.filesystem import AsyncSandboxFilesystem
from belljar.sdk._async.living import AsyncLiving
from belljar.sdk._async.network import AsyncEgress, AsyncPorts
from belljar.sdk._async.processes import AsyncProcesses
from belljar.sdk._async.running import AsyncRunning, AsyncSandboxCommands
from belljar.sdk._async.sandboxes import DEFAULT_TEMPLATE
from belljar.sdk.errors import InvalidArgument, PandastackError

logger = logging.getLogger("belljar.sdk")


class AsyncSandbox(Creatable, AsyncRunning, AsyncLiving):
    """A sandbox: a machine of its own, with its own kernel.

    `async with AsyncSandbox(template="base") as sandbox:` creates one and ends it on the way out, unless it is persistent. With an
    `id` it is a handle of one that exists, and nothing is asked of the server.
    """

    default_template: ClassVar[str] = DEFAULT_TEMPLATE

    id: str
    template: str
    cpu: int
    memory_mb: int
    status: str
    guest_ip: str | None
    created_at: str | None
    metadata: dict[str, str]
    from_snapshot: str | None
    boot_ms: int | None
    boot_mode: str | None
    persistent: bool

    def __init__(
        self,
        template: str | None = None,
        cpu: int | None = None,
        memory_mb: int | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        persistent: bool = False,
        from_snapshot: str | None = None,
        volumes: Sequence[Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        disk_mb: int | None = None,
        egress_allowlist: Sequence[str] | None = None,
        egress: str | Mapping[str, Any] | None = None,
        egress_secrets: Sequence[Mapping[str, str]] | None = None,
        cancel: CancelEvent | None = None,
        client: AsyncClient | None = None,
        id: str | None = None,
        status: str = "unknown",
        guest_ip: str | None = None,
        created_at: str | None = None,
        boot_ms: int | None = None,
        boot_mode: str | None = None,
        _client: AsyncClient | None = None,
    ) -> None:
        self._client = client or _client or get_default_client()
        self.id = id or ""
        self.template = template or self.default_template
        self.cpu, self.memory_mb = cpu or 0, memory_mb or 0
        self.status, self.guest_ip, self.created_at = status, guest_ip, created_at
        self.metadata = dict(metadata or {})
        self.from_snapshot, self.boot_ms, self.boot_mode, self.persistent = from_snapshot, boot_ms, boot_mode, persistent
        # All that the server says of it: expires_at, parent_id, disk_mb, reason, ttl_seconds …
        self.data: dict[str, Any] = {}
        self._wish: dict[str, Any] = {
            "ttl_seconds": ttl_seconds,
            "volumes": volumes,
            "env": env,
            "disk_mb": disk_mb,
            "egress_allowlist": egress_allowlist,
            "egress": egress,
            "egress_secrets": egress_secrets,
            "cancel": cancel,
        }
        if id is None:
            self._wish |= {"cpu": cpu, "memory_mb": memory_mb, "metadata": metadata}
            self._wish |= {"from_snapshot": from_snapshot, "persistent": persistent}
            self._begin()
        elif wrong := [name for name, value in self._wish.items() if value is not None]:
            raise InvalidArgument(f"a sandbox that exists takes no {', '.join(wrong)}")

    async def _create(self) -> Self:
        """Once: what was wished for at the constructor."""
        if not self.id:
            self._take(await self._client.sandboxes.create(self.template, **self._wish))
        return self

    def _take(self, other: AsyncSandbox) -> None:
        self.__dict__.update({name: value for name, value in other.__dict__.items() if name != "_client"})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], client: AsyncClient, persistent: bool = False) -> Self:
        sandbox = cls(
            id=str(data["id"]),
            template=data.get("template"),
            cpu=int(data.get("cpu") or 0),
            memory_mb=int(data.get("memory_mb") or 0),
            status=str(data.get("status") or "unknown"),
            guest_ip=data.get("guest_ip"),
            created_at=data.get("created_at"),
            metadata=data.get("metadata"),
            from_snapshot=data.get("from_snapshot"),
            boot_ms=data.get("boot_ms"),
            boot_mode=data.get("boot_mode"),
            persistent=bool(data.get("persistent", persistent)),
            client=client,
        )
        sandbox.data = dict(data)
        return sandbox

    @classmethod
    async def create(
        cls,
        template: str = DEFAULT_TEMPLATE,
        cpu: int | None = None,
        memory_mb: int | None = None,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        persistent: bool = False,
        from_snapshot: str | None = None,
        volumes: Sequence[Mapping[str, Any]] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        disk_mb: int | None = None,
        egress_allowlist: Sequence[str] | None = None,
        egress: str | Mapping[str, Any] | None = None,
        egress_secrets: Sequence[Mapping[str, str]] | None = None,
        client: AsyncClient | None = None,
        cancel: CancelEvent | None = None,
    ) -> AsyncSandbox:
        """A new sandbox; see `AsyncSandboxAPI.create`."""
        return await (client or get_default_client()).sandboxes.create(
            template,
            cpu=cpu,
            memory_mb=memory_mb,
            ttl_seconds=ttl_seconds,
            persistent=persistent,
            metadata=metadata,
            from_snapshot=from_snapshot,
            volumes=volumes,
            env=env,
            disk_mb=disk_mb,
            egress_allowlist=egress_allowlist,
            egress=egress,
            egress_secrets=egress_secrets,
            cancel=cancel,
        )

    @classmethod
    async def list(cls, **filters: Any) -> builtins.list[AsyncSandbox]:
        """Those of the default client; filters as for `AsyncSandboxAPI.list`."""
        return await get_default_client().sandboxes.list(**filters)

    @classmethod
    async def get(cls, sandbox_id: str) -> AsyncSandbox:
        return await get_default_client().sandboxes.get(sandbox_id)

    async def refresh(self) -> Self:
        """Ask the server how it is."""
        self._take(await self._client.sandboxes.get(self.id))
        return self

    @property
    def client(self) -> AsyncClient:
        return self._client

    @property
    def filesystem(self) -> AsyncSandboxFilesystem:
        return AsyncSandboxFilesystem(self._client, self.id)

    @property
    def commands(self) -> AsyncSandboxCommands:
        return AsyncSandboxCommands(self)

    @property
    def processes(self) -> AsyncProcesses:
        return AsyncProcesses(self._client, self.id)

    @property
    def contexts(self) -> AsyncContexts:
        return AsyncContexts(self._client, self.id)

    @property
    def egress(self) -> AsyncEgress:
        return AsyncEgress(self._client, self.id)

    @property
    def ports(self) -> AsyncPorts:
        return AsyncPorts(self._client, self.id)

    async def __aenter__(self) -> Self:
        return await self._create()

    async def __aexit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if self.persistent:
            return
        try:
            await self.kill()
        except PandastackError as failure:
            if problem is None:
                raise
            # What went wrong inside is what its user wants to see.
            logger.warning("sandbox %s could not be ended: %s", self.id, failure.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, template={self.template!r}, status={self.status!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncSandbox) and bool(self.id) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)
