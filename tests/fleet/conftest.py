"""The facade of a sandbox over a scripted guest (`processes`, `files`, `contexts`) and over a real agent on the host (`real_…`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from belljar.fleet.contexts import Contexts
from belljar.fleet.files import Files
from belljar.fleet.process import LinkProvider
from belljar.fleet.processes import Processes
from belljar.vm.link import Link
from tests.fleet.scripted_guest import ScriptedGuest
from tests.guest.conftest import Guest, work
from tests.guest.conftest import guest as agent

__all__ = ["agent", "work"]


@pytest.fixture
async def guest() -> AsyncIterator[ScriptedGuest]:
    scripted = ScriptedGuest()
    yield scripted
    scripted.stop()


@pytest.fixture
async def links(guest: ScriptedGuest) -> AsyncIterator[LinkProvider]:
    link = await guest.start()

    async def provide() -> Link:
        return link

    yield provide
    await link.aclose()


@pytest.fixture
def processes(links: LinkProvider) -> Processes:
    return Processes(links)


@pytest.fixture
def files(links: LinkProvider) -> Files:
    return Files(links)


@pytest.fixture
def contexts(links: LinkProvider) -> Contexts:
    return Contexts(links)


@pytest.fixture
def real_links(agent: Guest) -> LinkProvider:
    async def provide() -> Link:
        return agent.link

    return provide


@pytest.fixture
def real_processes(real_links: LinkProvider) -> Processes:
    return Processes(real_links)


@pytest.fixture
def real_files(real_links: LinkProvider) -> Files:
    return Files(real_links)
