"""Real servers on loopback, a real DNS server that names them, and a gateway with a guest that asks as the agent does."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
import pytest_asyncio

from belljar.egress.addresses import Reach, parse_networks
from belljar.egress.gateway import Gateway
from belljar.egress.outlet import Ground, Outlet
from belljar.egress.policy import Limits, parse_policy
from belljar.errors import BelljarError
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from tests.conftest import CreateSandbox
from tests.egress.dns_server import DnsServer
from tests.egress.net_guest import NetGuest
from tests.egress.servers import Servers, TestAuthority
from tests.egress.world import World


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    """`here.test` is this machine; tests add what they need."""
    server = await DnsServer().start()
    server.names["here.test"] = [("A", "127.0.0.1")]
    yield server
    server.stop()


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    running = Servers()
    yield running
    await running.stop()


@pytest.fixture
def ground(dns: DnsServer) -> Ground:
    """A server whose configuration opens 127.0.0.1, and no other address of its own."""
    opened = parse_networks("127.0.0.1", "egress_allow_private")
    return Ground(Reach(opened), [("127.0.0.1", dns.port)], Limits(connections=256), parse_policy("open"))


MakeGuest = Callable[[Outlet], Awaitable[NetGuest]]


@pytest.fixture
async def serve() -> AsyncIterator[MakeGuest]:
    """A guest whose asks an outlet answers."""
    ends: list[Callable[[], Awaitable[None]]] = []
    outlets: list[Outlet] = []

    async def start(outlet: Outlet) -> NetGuest:
        guest = NetGuest()
        link = await guest.start()
        task = asyncio.create_task(Gateway(link, outlet).serve())

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError, BelljarError):
                await task
            await link.aclose()
            guest.stop()

        outlets.append(outlet)
        ends.append(end)
        async with asyncio.timeout(30):
            await guest.serving.wait()
        return guest

    yield start
    for end in ends:
        await end()
    assert not any(outlet.open or outlet.usage.connections for outlet in outlets), "connections were left behind"


@pytest.fixture
async def outlet(ground: Ground) -> Outlet:
    return Outlet(ground)


@pytest.fixture
async def guest(serve: MakeGuest, outlet: Outlet) -> NetGuest:
    return await serve(outlet)


# -- real sandboxes -----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="session")
async def world(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A fleet whose configuration opens 127.0.0.1 and asks a DNS server of the tests."""
    dns = await DnsServer().start()
    authority = TestAuthority(tmp_path_factory.mktemp("authority"))
    changed = dataclasses.replace(
        settings, egress_dns=dns.address, egress_allow_private="127.0.0.1", egress_ca_file=str(authority.file)
    )
    fleet = await Fleet.open(changed, maintain=False)
    running = World(fleet, dns, authority, Servers())
    yield running
    await running.stop()


@pytest_asyncio.fixture(scope="session")
async def box(world: World) -> AsyncIterator[Sandbox]:
    """One sandbox for all tests that leave its policy as it was: open."""
    sandbox = await world.fleet.create("base")
    yield sandbox
    await sandbox.kill()


@pytest_asyncio.fixture
async def make(world: World) -> AsyncIterator[CreateSandbox]:
    """Creates sandboxes in that fleet that end with the test."""
    made: list[Sandbox] = []

    async def make_one(template: str = "base", **wishes: object) -> Sandbox:
        sandbox = await world.fleet.create(template, **wishes)  # type: ignore[arg-type]
        made.append(sandbox)
        return sandbox

    yield make_one
    for sandbox in made:
        await sandbox.kill()
