"""The guest's kernel: Debian's own cloud kernel, and an initrd with its modules, busybox and the agent.

Two steps, so that a change of the agent costs well under a second: the files out of Debian's packages are fetched once and kept
in the cache; kernel/<digest>/ is then put together from those and from this package's sources. The agent is in the
initrd and not in the root images, so that images do not depend on it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from belljar.errors import BuildFailed
from belljar.store.layout import Layout
from belljar.store.publish import exclusive, publish, workplace
from belljar.templates import cpio
from belljar.templates.steps import LOCK_DEADLINE_S, Progress, as_root, directory_writable, remove_as_root, run_step

KERNEL_GENERATION = 1
SUITE = "bookworm"
PACKAGES = ("linux-image-cloud-amd64", "busybox-static")
# ext4 and the serial console are built in; these are not. The second line is what guest/net/rules.py needs.
MODULES = (
    *("virtio_mmio", "virtio_blk", "virtio_console", "overlay"),
    *("nf_tables", "nft_chain_nat", "nft_redir", "nft_reject_ipv4", "nft_fib_ipv4", "nft_ct", "nft_queue", "nfnetlink_queue"),
)

INIT = Path(__file__).parent / "initrd" / "init"
AGENT = Path(__file__).parent.parent
AGENT_SOURCES = ("__init__.py", "wire/*.py", "guest/*.py", "guest/net/*.py", "kernel/*.py", "kernel/*.js")
START = b"""import sys
sys.path.insert(0, "/usr/lib/belljar")
from belljar.guest.init import main
main()
"""


@dataclass(frozen=True, slots=True)
class KernelImage:
    """What boots a guest."""

    dir: Path
    vmlinuz: Path
    initrd: Path
    release: str
    digest: str


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """What was taken out of Debian's packages. `modules` are in the order in which they must be loaded."""

    dir: Path
    release: str
    modules: tuple[str, ...]
    digest: str


def build_kernel(layout: Layout, progress: Progress) -> KernelImage:
    """The kernel and the initrd for the agent as it is in this package now."""
    layout.prepare()
    directory_writable(layout.home)
    files = kernel_files(layout, progress)
    initrd = make_initrd(files, agent_sources())
    digest = hashlib.sha256(files.digest.encode() + initrd).hexdigest()
    target = layout.kernel(digest)
    image = KernelImage(target, target / "vmlinuz", target / "initrd", files.release, digest)
    if target.exists():
        return image
    with exclusive(layout.lock(f"kernel-{digest}"), LOCK_DEADLINE_S), workplace(layout.tmp, "kernel") as work:
        if target.exists():
            return image
        built = work.path / "image"
        built.mkdir()
        shutil.copyfile(files.dir / "vmlinuz", built / "vmlinuz")
        (built / "initrd").write_bytes(initrd)
        content = {"digest": digest, "release": files.release, "modules": list(files.modules), "files": files.digest}
        _write_manifest(built, content)
        publish(built, target)
    progress(f"kernel {files.release} with this agent: {digest[:12]}")
    return image


def agent_sources() -> dict[str, bytes]:
    """The agent's files, by their path below /usr/lib/belljar."""
    paths = sorted(path for pattern in AGENT_SOURCES for path in AGENT.glob(pattern))
    return {f"belljar/{path.relative_to(AGENT).as_posix()}": path.read_bytes() for path in paths}


def make_initrd(files: KernelFiles, agent: dict[str, bytes]) -> bytes:
    """The initrd, a function of its inputs alone."""
    folders = {"agent", "bin", "dev", "disk", "image", "lib", "proc", "root", "sys"}
    folders |= {f"agent/{parent}" for name in agent for parent in PurePosixPath(name).parents if parent.name}
    entries = [cpio.directory(name) for name in folders]
    entries.append(cpio.file("init", INIT.read_bytes(), executable=True))
    entries.append(cpio.file("bin/busybox", (files.dir / "busybox").read_bytes(), executable=True))
    entries.append(cpio.file("lib/modules.order", "".join(f"{name}\n" for name in files.modules).encode()))
    entries += [cpio.file(f"lib/{name}.ko", (files.dir / f"{name}.ko").read_bytes()) for name in files.modules]
    entries.append(cpio.file("agent/start.py", START))
    entries += [cpio.file(f"agent/{name}", data) for name, data in agent.items()]
    return cpio.archive(entries)


def kernel_files(layout: Layout, progress: Progress) -> KernelFiles:
    """vmlinuz, busybox and the modules, fetched once."""
    wanted = json.dumps([KERNEL_GENERATION, SUITE, PACKAGES, MODULES])
    key = hashlib.sha256(wanted.encode()).hexdigest()
    target = layout.kernel_files(key)
    if target.exists():
        return _read_files(target)
    lock = layout.lock(f"kernel-files-{key}")
    with exclusive(lock, LOCK_DEADLINE_S, lambda: progress("kernel: another process is fetching it, waiting")):
        if not target.exists():
            _fetch(layout, target, progress)
    return _read_files(target)


def _fetch(layout: Layout, target: Path, progress: Progress) -> None:
    with workplace(layout.tmp, "kernelfiles", remove_as_root) as work:
        tree, kept = work.path / "tree", work.path / "kept"
        command = as_root("mmdebstrap", "--mode=root", "--variant=extract", f"--include={','.join(PACKAGES)}", SUITE, tree)
        run_step("fetch the guest's kernel from Debian", command, progress=progress, keep_fds=[work.fd])
        images = sorted((tree / "boot").glob("vmlinuz-*"))
        if not images:
            raise BuildFailed(f"{PACKAGES[0]} of {SUITE} brought no /boot/vmlinuz-*", step="kernel")
        release = images[-1].name.removeprefix("vmlinuz-")
        available = {path.stem: path for path in (tree / "lib" / "modules" / release).rglob("*.ko")}
        order = load_order(MODULES, {name: path.read_bytes for name, path in available.items()})
        kept.mkdir()
        sources = {"vmlinuz": images[-1], "busybox": tree / "bin" / "busybox"}
        sources |= {f"{name}.ko": available[name] for name in order}
        digest = hashlib.sha256()
        for name, source in sorted(sources.items()):
            data = source.read_bytes()
            (kept / name).write_bytes(data)
            digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
        _write_manifest(kept, {"release": release, "modules": order, "digest": digest.hexdigest()})
        publish(kept, target)


def load_order(wanted: tuple[str, ...], readers: dict[str, Any]) -> list[str]:
    """`wanted` and what they depend on, dependencies first. A module names its own in its .modinfo section: `depends=a,b`."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in order:
            return
        if name not in readers:
            raise BuildFailed(f"the kernel package has no module {name}", step="kernel")
        match = re.search(rb"\0depends=([^\0]*)\0", readers[name]())
        for dependency in match.group(1).decode().split(",") if match else ():
            if dependency:
                add(dependency.replace("-", "_"))
        order.append(name)

    for name in wanted:
        add(name)
    return order


def _read_files(directory: Path) -> KernelFiles:
    manifest = json.loads((directory / "manifest.json").read_text())
    return KernelFiles(directory, manifest["release"], tuple(manifest["modules"]), manifest["digest"])


def _write_manifest(directory: Path, content: dict[str, Any]) -> None:
    (directory / "manifest.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
