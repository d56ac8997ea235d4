"""Previews over records and a sandbox that only counts its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import BelljarError, HostError, InvalidInput, PortClosed, SandboxNotFound, Unauthorized
from belljar.fleet.ports import ListeningPort
from belljar.service import visits as module
from belljar.service.activity import Activity
from belljar.service.journal import Journal
from belljar.service.links import Links
from belljar.service.logs import Logs
from belljar.service.previews import Previews, parse_port
from belljar.service.quotas import Quotas
from belljar.service.visits import OWNER, PUBLIC, Right
from belljar.service.workspace import Parts, Workspace
from belljar.settings import load_settings
from belljar.store.db import Records, SandboxRecord
from belljar.store.events import Events
from belljar.store.layout import Layout
from belljar.store.ports import SharedPorts


class FakePorts:
    def __init__(self) -> None:
        self.open = 0
        self.on_connect: Callable[[], Awaitable[object]] | None = None
        self.listening: list[ListeningPort] | Exception = [ListeningPort(80, "0.0.0.0"), ListeningPort(80, "::")]

    async def list(self) -> list[ListeningPort]:
        if isinstance(self.listening, Exception):
            raise self.listening
        return self.listening

    async def connect(self, port: int) -> FakeStream:
        if port == 81:
            raise PortClosed("nothing there")
        if self.on_connect is not None:
            await self.on_connect()
        return FakeStream(self)


class FakeStream:
    def __init__(self, ports: FakePorts) -> None:
        self._ports = ports
        self.problem: BelljarError | None = None

    def cut(self, problem: BelljarError) -> None:
        self.problem = problem

    async def __aenter__(self) -> FakeStream:
        self._ports.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ports.open -= 1


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Any]:
    records = Records(tmp_path / "belljar.db")
    for name, workspace in (("sb-1", "w"), ("sb-2", "v")):
        records.insert_sandbox(SandboxRecord(name, "base", "d", "running", 1.0, 1, 128, 128, workspace=workspace))
    ports = FakePorts()

    def handle(record: SandboxRecord) -> Any:
        return SimpleNamespace(ports=ports, record=record, attached=True)

    fleet: Any = SimpleNamespace(handle=handle)
    settings, journal = load_settings(), Journal(Events(records.database))
    parts = Parts(settings, fleet, records, Activity(), journal, Logs(Layout(tmp_path)), Quotas(settings, records))
    previews = Previews(parts, SharedPorts(records.database), Links(b"k" * 32))
    yield SimpleNamespace(previews=previews, parts=parts, ports=ports, w=Workspace(parts, "w"), v=Workspace(parts, "v"))
    records.close()


async def test_one_port_is_one_however_many_listen(service: Any) -> None:
    (found,) = await service.previews.list(service.w, "sb-1")
    assert (found.port, found.listening, found.source) == (80, True, "detected")
    service.ports.listening = InvalidInput("this agent has no operation 'net.ports'")
    assert await service.previews.list(service.w, "sb-1") == []


async def test_a_workspace_reaches_its_own_only(service: Any) -> None:
    previews, v = service.previews, service.v
    for call in (
        previews.list(v, "sb-1"),
        previews.share(v, "sb-1", 80, public=True, label=""),
        previews.withdraw(v, "sb-1", 80),
        previews.make_link(v, "sb-1", 80),
    ):
        with pytest.raises(SandboxNotFound):
            await call
    with pytest.raises(SandboxNotFound):
        async with previews.connect(v, "sb-1", 80):
            pass
    assert await previews.find_public("sb-1", 80) is None
    await previews.share(service.w, "sb-1", 80, public=True, label="")
    assert (await previews.find_public("sb-1", 80)).name == "w"
    assert await previews.find_public("sb-1", 81) is None and await previews.find_public("sb-9", 80) is None


async def test_a_link_ends_with_its_sandbox_and_its_port(service: Any) -> None:
    token, made = await service.previews.make_link(service.w, "sb-1", 80, ttl_s=60, paths=["/a"])
    assert await service.previews.check_link(token) == made
    await service.previews.withdraw(service.w, "sb-1", 81)
    assert await service.previews.check_link(token) == made
    await service.previews.withdraw(service.w, "sb-1", 80)
    with pytest.raises(Unauthorized, match="withdrawn"):
        await service.previews.check_link(token)
    token, _ = await service.previews.make_link(service.w, "sb-1", 80)
    await service.previews.check_link(token)
    service.parts.records.delete_sandbox("sb-1")
    with pytest.raises(Unauthorized, match="ended"):
        await service.previews.check_link(token)


async def test_connections_are_counted_limited_and_keep_the_sandbox_awake(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    previews, activity = service.previews, service.parts.activity
    async with previews.connect(service.w, "sb-1", 80), previews.connect(service.w, "sb-1", 80):
        assert activity.uses("sb-1").get("stream", 0) == 2 == service.ports.open
        with pytest.raises(HostError, match="2 connections"):
            async with previews.connect(service.w, "sb-1", 80):
                pass
        async with previews.connect(service.v, "sb-2", 80):  # another sandbox is not concerned
            pass
    # A crowd leaves some for those whose sandbox it is.
    monkeypatch.setattr(module, "KEPT_FOR_OWNERS", 1)
    await previews.share(service.w, "sb-1", 80, public=True, label="")
    async with previews.connect(service.w, "sb-1", 80, PUBLIC):
        with pytest.raises(HostError, match="1 connections"):
            async with previews.connect(service.w, "sb-1", 80, PUBLIC):
                pass
        async with previews.connect(service.w, "sb-1", 80):
            pass
    for _ in range(3):
        with pytest.raises(PortClosed):
            async with previews.connect(service.w, "sb-1", 81):
                pass
    assert activity.uses("sb-1").get("stream", 0) == 0 == service.ports.open
    async with previews.connect(service.w, "sb-1", 80):
        pass


async def test_who_has_lost_the_right_is_cut_off_and_nobody_else(service: Any) -> None:
    previews, w = service.previews, service.w
    await previews.share(w, "sb-1", 80, public=True, label="")
    _, made = await previews.make_link(w, "sb-1", 80)
    _, other = await previews.make_link(w, "sb-1", 82)

    def connect(port: int, right: Right) -> Any:
        return previews.connect(w, "sb-1", port, right)

    async with (
        connect(80, OWNER) as owner,
        connect(80, PUBLIC) as public,
        connect(80, Right(made)) as linked,
        connect(82, Right(other)) as elsewhere,
    ):
        await previews.share(w, "sb-1", 80, public=True, label="a new name")
        assert public.problem is None, "it is as public as before"
        await previews.share(w, "sb-1", 80, public=False, label="")
        assert isinstance(public.problem, Unauthorized) and linked.problem is None
        await previews.withdraw(w, "sb-1", 80)
        assert isinstance(linked.problem, Unauthorized)
        assert owner.problem is None and elsewhere.problem is None
    assert service.ports.open == 0


async def test_a_right_that_ends_while_the_connection_is_made_counts(service: Any) -> None:
    previews, w = service.previews, service.w
    _, made = await previews.make_link(w, "sb-1", 80)
    await previews.share(w, "sb-1", 80, public=True, label="")
    service.ports.on_connect = lambda: previews.withdraw(w, "sb-1", 80)
    for right in (PUBLIC, Right(made)):
        with pytest.raises(Unauthorized):
            async with previews.connect(w, "sb-1", 80, right):
                pass
    assert service.ports.open == 0
    # Withdrawn between the check and the connection: the port is public no more, though nobody was there to be cut off.
    service.ports.on_connect = None
    with pytest.raises(Unauthorized):
        async with previews.connect(w, "sb-1", 80, PUBLIC):
            pass


async def test_a_link_that_expires_ends_what_it_opened(service: Any) -> None:
    _, made = await service.previews.make_link(service.w, "sb-1", 80, ttl_s=0.2)
    async with service.previews.connect(service.w, "sb-1", 80, Right(made)) as stream:
        async with asyncio.timeout(30):
            while stream.problem is None:
                await asyncio.sleep(0.01)
        assert "expired" in stream.problem.message


@pytest.mark.parametrize("text", ["", "0", "65536", "99999", "-1", "8 0", "x", "٣", "1" * 20])
def test_what_is_no_port_is_not_there(text: str) -> None:
    with pytest.raises(SandboxNotFound):
        parse_port(text)
