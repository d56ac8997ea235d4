"""Root images: what is built once, what is refused, and what a failed build leaves behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from belljar.errors import BuildFailed, HostSetup
from belljar.settings import load_settings
from belljar.store.layout import Layout
from belljar.templates import steps
from belljar.templates.recipe import Recipe, load_recipe
from belljar.templates.rootfs import build_root, image_size


@pytest.fixture
def base() -> Recipe:
    return load_recipe("base", load_settings({}).recipes)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "home")


def use_program(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, script: str) -> None:
    """Put a program of that name before the real ones."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_an_image_that_exists_is_returned_without_building(layout: Layout, base: Recipe) -> None:
    there = layout.root(base.root_digest)
    there.mkdir(parents=True)
    (there / "manifest.json").write_text(json.dumps({"digest": base.root_digest}))
    image = build_root(layout, base, pytest.fail)
    assert (image.path, image.digest, image.manifest["digest"]) == (there / "root.ext4", base.root_digest, base.root_digest)


def test_a_failed_build_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: Layout, base: Recipe
) -> None:
    script = 'for last; do :; done; mkdir -p "$last/etc"; echo "E: no mirror"; exit 25'
    use_program(monkeypatch, tmp_path / "bin", "mmdebstrap", script)
    with pytest.raises(BuildFailed, match=r"install Debian bookworm failed \(exit code 25\):\nE: no mirror"):
        build_root(layout, base, lambda _: None)
    assert list(layout.tmp.iterdir()) == list(layout.roots.iterdir()) == list(layout.trees.iterdir()) == []


def test_what_an_interrupted_build_left_is_removed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: Layout, base: Recipe
) -> None:
    (layout.tmp / "tree-dead" / "tree").mkdir(parents=True)
    use_program(monkeypatch, tmp_path / "bin", "mmdebstrap", "exit 1")
    with pytest.raises(BuildFailed):
        build_root(layout, base, lambda _: None)
    assert list(layout.tmp.iterdir()) == []


def test_without_root_and_without_ids_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, base: Recipe
) -> None:
    monkeypatch.setattr("belljar.templates.steps.os.geteuid", lambda: 1234)
    monkeypatch.setattr(steps, "USER_NAMESPACE", ("sh", "-c", "echo unshare: no line for user in /etc/subuid; exit 1"))
    steps._require_user_namespaces.cache_clear()
    with pytest.raises(HostSetup, match=r"(?s)run the build once as root.*subuid.*no line for user"):
        build_root(layout, base, lambda _: None)
    assert list(layout.tmp.iterdir()) == []


def test_an_image_is_large_enough_for_what_goes_in(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for n in range(300):
        (tree / f"d{n % 40}").mkdir(parents=True, exist_ok=True)
        (tree / f"d{n % 40}" / f"f{n}").write_bytes(b"x" * (n * 997))
    listing = steps.run_step("list", ["find", tree, "-printf", "%i %s\n"], progress=lambda _: None)
    size, inodes = image_size(listing)
    assert size % (1 << 20) == 0 and inodes > 340
    options = ["-q", "-F", "-t", "ext4", "-d", tree, "-N", str(inodes)]
    subprocess.run([steps.find_program("mke2fs"), *options, tmp_path / "i", f"{size // 1024}k"], check=True, timeout=60)


def test_a_hard_link_is_counted_once() -> None:
    assert image_size(["7 100000000", "7 100000000"]) == image_size(["7 100000000"])
