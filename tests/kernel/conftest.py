from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.driver import Context, Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    warm = Zygote(["numpy", "json.tool", "no_such_module"], tmp_path_factory.mktemp("home"))
    yield warm
    warm.close()


@pytest.fixture
def context(zygote: Zygote, tmp_path: Path) -> Iterator[Context]:
    made = zygote.fork(tmp_path)
    made.send(do="env", set={}, cwd=None)
    assert made.receive()["ev"] == "ready"
    yield made
    made.close()
    assert zygote.receive("exited")["pid"] == made.pid
