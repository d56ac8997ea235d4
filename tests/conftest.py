"""Fixtures that give tests real sandboxes.

Templates are baked once, in the user's own store; every run gets a home of its own beside it that borrows them. Tests share the
baked templates, never a sandbox.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
import pytest_asyncio

from belljar.errors import BelljarError
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings, load_settings
from belljar.store.layout import Layout
from belljar.templates.bake import show_template
from tests.dealing import ByFile, in_order

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("belljar", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("belljar")

BORROWED = ("kernel", "roots", "templates", "names", "cache")
CreateSandbox = Callable[..., Awaitable[Sandbox]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_order(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def own_settings() -> Settings:
    """The settings of the store that holds the templates."""
    return load_settings()


@contextmanager
def borrowed_home(own_settings: Settings) -> Iterator[Path]:
    """An empty home with the user's templates in it."""
    store = Layout(own_settings.home)
    # Beside the templates, because what sandboxes share of them is linked, and links do not cross file systems.
    home = Path(tempfile.mkdtemp(prefix="tests-", dir=store.tmp))
    for name in BORROWED:
        (home / name).symlink_to(store.home / name)
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def settings(own_settings: Settings) -> Iterator[Settings]:
    """A home for this run, with the user's templates in it and nothing else of the user's."""
    if not show_template(own_settings, "base").digest:
        pytest.fail("the template base is not built; `make test` builds it, or run `belljar template build base`")
    with borrowed_home(own_settings) as home:
        yield dataclasses.replace(own_settings, home=home)


@pytest_asyncio.fixture(scope="session")
async def fleet(settings: Settings) -> AsyncIterator[Fleet]:
    """One owner for the whole run. What a test forgets to end is ended here."""
    opened = await Fleet.open(settings)
    yield opened
    for record in await opened.list():
        await opened.kill(record.id)
    await opened.aclose()


@pytest_asyncio.fixture
async def create(fleet: Fleet) -> AsyncIterator[CreateSandbox]:
    """Creates sandboxes that end with the test."""
    made: list[Sandbox] = []

    async def create_one(template: str = "base", **wishes: object) -> Sandbox:
        sandbox = await fleet.create(template, **wishes)  # type: ignore[arg-type]
        made.append(sandbox)
        return sandbox

    yield create_one
    for sandbox in made:
        try:
            await sandbox.kill()
        except BelljarError as problem:
            pytest.fail(f"sandbox {sandbox.id} could not be ended: {problem.message}")


@pytest_asyncio.fixture
async def sandbox(create: CreateSandbox) -> Sandbox:
    """A fresh sandbox of the base template."""
    return await create()


async def said(sandbox: Sandbox, command: str | list[str], **options: object) -> str:
    """What a command prints; it must succeed."""
    result = await sandbox.processes.run(command, timeout_s=120, **options)  # type: ignore[arg-type]
    assert result.exit_code == 0, f"{command}: exit {result.exit_code}, signal {result.signal}: {result.stderr!r}"
    return result.stdout.decode().strip()
