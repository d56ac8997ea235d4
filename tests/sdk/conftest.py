"""A server of the SDK's own tests, with real sandboxes, and both kinds of client to talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from belljar import AsyncClient, AsyncSandbox, Client, Sandbox
from belljar.settings import Settings
from tests.conftest import borrowed_home
from tests.server.conftest import Server


@pytest.fixture(scope="session")
def sdk_server(own_settings: Settings) -> Iterator[Server]:
    with borrowed_home(own_settings) as home:
        server = Server(home, BELLJAR_IDLE_TIMEOUT_S="3600")
        with Client(server.url, server.token) as client:
            yield server
            for left in client.sandboxes.list():
                left.kill()
        server.stop()


@pytest.fixture(scope="session")
def client(sdk_server: Server) -> Iterator[Client]:
    with Client(sdk_server.url, sdk_server.token) as made:
        yield made


@pytest_asyncio.fixture(scope="session")
async def aclient(sdk_server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(sdk_server.url, sdk_server.token) as made:
        yield made


@pytest.fixture(scope="session")
def box(client: Client) -> Iterator[Sandbox]:
    """One sandbox for all tests that leave it as it was."""
    with client.sandboxes.create("base", metadata={"purpose": "shared"}) as made:
        yield made


@pytest_asyncio.fixture(scope="session")
async def abox(aclient: AsyncClient, box: Sandbox) -> AsyncSandbox:
    """The same one, without blocking."""
    return await aclient.sandboxes.get(box.id)


MakeBox = Callable[..., Sandbox]


@pytest.fixture
def make(client: Client) -> Iterator[MakeBox]:
    """Creates sandboxes that end with the test."""
    made: list[Sandbox] = []

    def make_one(template: str = "base", **wishes: object) -> Sandbox:
        made.append(client.sandboxes.create(template, **wishes))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for sandbox in made:
        sandbox.kill()
