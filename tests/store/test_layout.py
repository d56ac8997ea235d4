"""Names from outside become paths only if they are one plain component."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.errors import HostSetup, InvalidInput
from belljar.store.layout import Layout

LAYOUT = Layout(Path("/home/of/belljar"))
JOINERS: list[Callable[[str], Path]] = [
    LAYOUT.kernel,
    LAYOUT.kernel_files,
    LAYOUT.root,
    LAYOUT.tree,
    LAYOUT.template,
    LAYOUT.name,
    LAYOUT.sandbox,
    LAYOUT.snapshot,
    LAYOUT.lock,
]


@pytest.mark.parametrize("join", JOINERS)
@pytest.mark.parametrize("text", ["", ".", "..", "../x", "a/b", "/etc", "a\0b", "x" * 10_000, "-rf", ".a", "a\n", "ä", "a b"])
def test_a_name_that_is_not_one_plain_component_is_refused(join: Callable[[str], Path], text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        join(text)
    assert len(caught.value.message) < 250


def test_every_place_is_different_and_below_home() -> None:
    places = [join("abc") for join in JOINERS] + [LAYOUT.database, LAYOUT.host_facts, LAYOUT.tmp]
    assert len(set(places)) == len(places)
    assert all(place.is_relative_to(LAYOUT.home) for place in places)


def test_prepare_creates_a_private_store_and_may_be_repeated(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "deep" / "home")
    layout.prepare()
    layout.prepare()
    assert layout.home.stat().st_mode & 0o777 == 0o700
    assert layout.tmp.is_dir() and layout.trees.is_dir() and layout.names.is_dir()


def test_a_home_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostSetup, match=r"cannot use .*/file/home as a home: Not a directory"):
        Layout(tmp_path / "file" / "home").prepare()
