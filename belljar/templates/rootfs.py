"""Root images: recipe -> tree of files -> read-only ext4.

A tree starts as a copy of its parent's, or as a fresh Debian system when there is no parent or the recipe wants more packages;
then the recipe's own wheels, files, links and users are laid on top. Trees that other recipes build on stay in the cache.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.errors import BuildFailed
from belljar.store.layout import Layout
from belljar.store.publish import Workplace, exclusive, flush, publish, workplace
from belljar.templates.layer import apply_layer
from belljar.templates.recipe import Recipe
from belljar.templates.steps import LOCK_DEADLINE_S, Progress, as_root, directory_writable, remove_as_root, run_step
from belljar.templates.wheels import EPOCH

BLOCK = 4096
INODE = 256
# No journal, checksums or room to grow: the image is never written to, and each of them costs the guest time or the host space.
FEATURES = "^has_journal,^metadata_csum,^resize_inode,^64bit"
UNWANTED = (
    *(f"/usr/share/{name}/*" for name in ("man", "info", "locale", "doc", "lintian", "bug", "doc-base")),
    "/usr/share/perl*/pod/*",
)


@dataclass(frozen=True, slots=True)
class RootImage:
    """A read-only ext4 image and what is known about it."""

    path: Path
    digest: str
    manifest: dict[str, Any]


def build_root(layout: Layout, recipe: Recipe, progress: Progress) -> RootImage:
    """The root image of a recipe; at once if it was built before."""
    layout.prepare()
    directory_writable(layout.home)
    digest = recipe.root_digest
    target = layout.root(digest)
    if not target.exists():
        began = time.monotonic()
        lock = layout.lock(f"root-{digest}")
        with exclusive(lock, LOCK_DEADLINE_S, lambda: progress(f"{recipe.name}: another process is building it, waiting")):
            if not target.exists():
                with _tree(layout, recipe, progress) as (tree, work):
                    _publish_image(layout, recipe, tree, work, progress)
        progress(f"{recipe.name}: root image {digest[:12]}, {time.monotonic() - began:.0f} s in all")
    return RootImage(target / "root.ext4", digest, json.loads((target / "manifest.json").read_text()))


@contextmanager
def _tree(layout: Layout, recipe: Recipe, progress: Progress) -> Iterator[tuple[Path, Workplace]]:
    """The recipe's tree, and a place to work in. The tree is kept if other recipes build on this one."""
    cached = layout.tree(recipe.root_digest)
    with workplace(layout.tmp, "tree", remove_as_root) as work:
        if not cached.exists():
            tree = work.path / "tree"
            _make_tree(layout, recipe, tree, work, progress)
            if not recipe.extended:
                yield tree, work
                return
            # Thousands of files: flush the file system once instead of each of them.
            run_step("flush", ["sync", "-f", tree], progress=lambda _: None)
            tree.rename(cached)
            flush(cached.parent)
        yield cached, work


def _make_tree(layout: Layout, recipe: Recipe, tree: Path, work: Workplace, progress: Progress) -> None:
    said: Progress = lambda line: progress(f"{recipe.name}: {line}")  # noqa: E731
    if recipe.parent is not None and not recipe.packages:
        lock = layout.lock(f"root-{recipe.parent.root_digest}")
        with exclusive(lock, LOCK_DEADLINE_S), _tree(layout, recipe.parent, progress) as (original, _):
            copy = as_root("cp", "-a", "--reflink=auto", original, tree)
            run_step(f"copy the files of {recipe.parent.name}", copy, progress=said, keep_fds=[work.fd])
        apply_layer(recipe, tree, work, said)
        return
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in UNWANTED]
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", "--dpkgopt=force-unsafe-io"]
    include = f"--include={','.join(recipe.all_packages)}"
    command = as_root("mmdebstrap", "--mode=root", "--variant=minbase", *options, include, recipe.suite, tree)
    run_step(f"install Debian {recipe.suite}", command, progress=said, keep_fds=[work.fd])
    for ancestor in recipe.lineage:
        apply_layer(ancestor, tree, work, said)


def _publish_image(layout: Layout, recipe: Recipe, tree: Path, work: Workplace, progress: Progress) -> None:
    said: Progress = lambda line: progress(f"{recipe.name}: {line}")  # noqa: E731
    digest = recipe.root_digest
    built = work.path / "image"
    built.mkdir()
    image = built / "root.ext4"
    size, inodes = image_size(run_step("measure", as_root("find", tree, "-printf", "%i %s\n"), progress=lambda _: None))
    identity = uuid.uuid5(uuid.NAMESPACE_OID, digest)
    command = as_root("mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, "-O", FEATURES, "-m", "0", "-b", str(BLOCK))
    command += ["-I", str(INODE), "-N", str(inodes), "-U", str(identity)]
    command += ["-E", f"hash_seed={identity},lazy_itable_init=1,root_owner=0:0", image, f"{size // 1024}k"]
    dated = {"E2FSPROGS_FAKE_TIME": str(EPOCH)}
    run_step(f"write an image of {size >> 20} MiB", command, progress=said, env=dated, keep_fds=[work.fd])
    manifest = {
        "digest": digest,
        "recipe": recipe.name,
        "lineage": [ancestor.name for ancestor in recipe.lineage],
        "suite": recipe.suite,
        "debian": _installed(tree),
        "wheels": list(recipe.all_wheels),
        "size_bytes": size,
        "used_bytes": image.stat().st_blocks * 512,
    }
    (built / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    image.chmod(0o444)
    publish(built, layout.root(digest))


def image_size(listing: list[str]) -> tuple[int, int]:
    """Bytes and inodes for an image of files listed as "inode size", with a little room for the file system's own needs."""
    sizes = dict(line.split(" ") for line in listing)
    data = sum((int(size) + BLOCK - 1) // BLOCK * BLOCK or BLOCK for size in sizes.values())
    inodes = len(sizes) + 1024
    size = data + data // 50 + inodes * INODE + (32 << 20)
    return (size + (1 << 20) - 1) >> 20 << 20, inodes


def _installed(tree: Path) -> dict[str, str]:
    """Debian packages and versions, as dpkg recorded them."""
    found: dict[str, str] = {}
    for paragraph in (tree / "var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
        if fields.get("Status") == "install ok installed":
            found[fields["Package"]] = fields["Version"]
    if not found:
        raise BuildFailed("the tree has no installed packages", step="manifest")
    return found
