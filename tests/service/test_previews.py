"""Previews over records and a sandbox that only counts its connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import HostError, InvalidInput, PortClosed, SandboxNotFound, Unauthorized
from belljar.fleet.ports import ListeningPort
from belljar.service import previews as module
from belljar.service.activity import Activity
from belljar.service.journal import Journal
from belljar.service.links import Links
from belljar.service.logs import Logs
from belljar.service.previews import Previews, parse_port
from belljar.service.quotas import Quotas
from belljar.service.workspace import Parts, Workspace
from belljar.settings import load_settings
from belljar.store.db import Records, SandboxRecord
from belljar.store.events import Events
from belljar.store.layout import Layout
from belljar.store.ports import SharedPorts


class FakePorts:
    def __init__(self) -> None:
        self.open = 0
        self.listening: list[ListeningPort] | Exception = [ListeningPort(80, "0.0.0.0"), ListeningPort(80, "::")]

    async def list(self) -> list[ListeningPort]:
        if isinstance(self.listening, Exception):
            raise self.listening
        return self.listening

    async def connect(self, port: int) -> FakePorts:
        if port == 81:
            raise PortClosed("nothing there")
        return self

    async def __aenter__(self) -> FakePorts:
        self.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open -= 1


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
    for _ in range(3):
        with pytest.raises(PortClosed):
            async with previews.connect(service.w, "sb-1", 81):
                pass
    assert activity.uses("sb-1").get("stream", 0) == 0 == service.ports.open
    async with previews.connect(service.w, "sb-1", 80):
        pass


@pytest.mark.parametrize("text", ["", "0", "65536", "99999", "-1", "8 0", "x", "٣", "1" * 20])
def test_what_is_no_port_is_not_there(text: str) -> None:
    with pytest.raises(SandboxNotFound):
        parse_port(text)
