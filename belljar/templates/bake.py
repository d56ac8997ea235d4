"""From a root image to a template: boot it once, warm it up, and save the whole machine.

A bake is addressed by everything that its saved memory depends on: root image, kernel with agent, size, warm-up, context and the
host's fingerprint. The same inputs are never baked twice; other inputs never meet a stale memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.errors import BelljarError, BuildFailed, Conflict, HostSetup, SandboxError, TemplateNotFound
from belljar.settings import Settings
from belljar.store.layout import Layout
from belljar.store.manifest import Manifest, SavedMachine, folder_bytes
from belljar.store.publish import exclusive_async, publish, remove_published, workplace
from belljar.templates.kernel import KernelImage, build_kernel
from belljar.templates.recipe import Recipe, WarmContext, list_recipes, load_recipe
from belljar.templates.rootfs import RootImage, build_root
from belljar.templates.steps import LOCK_DEADLINE_S, Progress
from belljar.vm.channel import Data, Message
from belljar.vm.finishing import in_thread
from belljar.vm.host import HostFacts, probe_host
from belljar.vm.link import Link
from belljar.vm.machine import Machine, Parts
from belljar.vm.memory import new_memory, save_memory
from belljar.vm.rundir import RunDir
from belljar.vm.spec import Boot, Shape

BAKE_GENERATION = 2
# Emulated boots were seen to hang; a boot that works is there within ten seconds even on a busy host.
BOOT_DEADLINE_S = 90.0
BOOT_TRIES = 3
WARMUP_DEADLINE_S = 900.0
# What nearly every first command touches: in the guest's page cache, it need not be read from disk again in each sandbox.
FIRST_COMMANDS = ("true", "python3 -c pass", "sudo -n true; ls -l / | head -1 | cat > /dev/null")


@dataclass(frozen=True)
class TemplateInfo:
    """A template as `list` and `show` tell of it. `digest` is empty while it is not built."""

    name: str
    aliases: tuple[str, ...]
    description: str
    digest: str
    size_bytes: int
    manifest: Manifest | None


async def build_template(settings: Settings, name: str, progress: Progress) -> TemplateInfo:
    """Build a template by name, as far as it is not built yet, and make its names point to it."""
    layout = Layout(settings.home)
    recipe = await asyncio.to_thread(load_recipe, name, settings.recipes)
    layout.prepare()
    kernel = await asyncio.to_thread(build_kernel, layout, progress)
    root = await asyncio.to_thread(build_root, layout, recipe, progress)
    facts = await asyncio.to_thread(host_facts, settings, layout, kernel)
    digest = _digest(recipe, kernel, root, facts)
    target = layout.template(digest)
    if not target.exists():
        lock = layout.lock(f"bake-{digest}")
        async with exclusive_async(lock, LOCK_DEADLINE_S, lambda: progress("another process is baking it, waiting")):
            if not target.exists():
                await _bake(layout, recipe, kernel, root, facts, digest, settings, progress)
    _point_names(layout, recipe, digest)
    return _info(layout, recipe)


def host_facts(settings: Settings, layout: Layout, kernel: KernelImage, *, fresh: bool = False) -> HostFacts:
    """What the host can do, probed with this kernel; `fresh` probes again even if it is known."""
    return probe_host(
        qemu_name=settings.qemu,
        wanted=settings.accel,
        jail=settings.jail,
        kernel=kernel.vmlinuz,
        initrd=kernel.initrd,
        cache=layout.host_facts,
        fresh=fresh,
    )


def _digest(recipe: Recipe, kernel: KernelImage, root: RootImage, facts: HostFacts) -> str:
    shape = [recipe.vcpus, recipe.memory_mib, recipe.disk_mib, recipe.workdir, recipe.warmup]
    if recipe.context:
        shape += [recipe.context.preload, recipe.context.cells]
    if recipe.egress:
        shape += [recipe.egress]
    content = [BAKE_GENERATION, recipe.name, kernel.digest, root.digest, shape, facts.fingerprint.to_json()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


async def _bake(
    layout: Layout,
    recipe: Recipe,
    kernel: KernelImage,
    root: RootImage,
    facts: HostFacts,
    digest: str,
    settings: Settings,
    progress: Progress,
) -> None:
    began = time.monotonic()
    for attempt in range(1, BOOT_TRIES + 1):
        try:
            with workplace(layout.tmp, "bake") as place:
                saved = SavedMachine(place.path)
                os.link(root.path, saved.root)
                await asyncio.to_thread(make_disk, saved.disk, recipe.disk_mib)
                progress(f"{recipe.name}: booting under {facts.accelerator}")
                await _boot_and_save(saved, recipe, kernel, facts, settings, progress)
                saved.write_manifest(_manifest(recipe, kernel, root, facts, digest))
                for leftover in ("qmp.sock", "agent.sock", "qemu.log", "machine.json"):
                    (place.path / leftover).unlink(missing_ok=True)
                await asyncio.to_thread(publish, place.path, layout.template(digest))
            break
        except BelljarError as problem:
            if attempt == BOOT_TRIES or isinstance(problem, BuildFailed | HostSetup):
                raise
            progress(f"{recipe.name}: try {attempt} of {BOOT_TRIES} failed ({problem.message[:300]}); trying again")
    progress(f"{recipe.name}: baked in {time.monotonic() - began:.1f} s")


async def _boot_and_save(
    saved: SavedMachine, recipe: Recipe, kernel: KernelImage, facts: HostFacts, settings: Settings, progress: Progress
) -> None:
    shape = Shape(recipe.vcpus, recipe.memory_mib)
    uid = settings.uid_base + settings.uid_count - 1 if facts.is_root else None
    parts = Parts(f"bake-{recipe.name}", shape, saved.root, saved.disk, uid)
    memory = new_memory(shape.memory_bytes)
    try:
        machine = await Machine.boot(RunDir(saved.folder), parts, facts, memory, Boot(kernel.vmlinuz, kernel.initrd))
        try:
            await machine.resume()
            link = await _first_answer(machine)
            try:
                await _warm_up(link, recipe, progress)
            finally:
                await link.aclose()
            await machine.pause()
            await machine.save_devices(saved.devices)
            await in_thread(save_memory, memory, shape.memory_bytes, saved.memory)
        finally:
            await machine.kill()
    finally:
        os.close(memory)


async def _first_answer(machine: Machine) -> Link:
    """Wait for the agent, or for the machine's end, whichever comes first."""
    connecting = asyncio.create_task(machine.link(BOOT_DEADLINE_S))
    ending = asyncio.create_task(machine.wait_ended())
    await asyncio.wait([connecting, ending], return_when=asyncio.FIRST_COMPLETED)
    if connecting.done() and not connecting.exception():
        ending.cancel()
        return connecting.result()
    connecting.cancel()
    if ending.done():
        raise BuildFailed(f"the guest did not come up: {ending.result()}")
    ending.cancel()
    raise BuildFailed(f"the guest did not answer; console: {(await machine.console())[-1500:]}") from connecting.exception()


async def _warm_up(link: Link, recipe: Recipe, progress: Progress) -> None:
    now = {"time_ns": time.time_ns(), "hostname": recipe.name, "machine_id": secrets.token_hex(16), "cwd": recipe.workdir}
    await link.request("thaw", now, timeout_s=60)
    for line in (*FIRST_COMMANDS, *recipe.warmup):
        progress(f"{recipe.name}: warm-up: {line[:100]}")
        output = bytearray()
        exited: dict[str, Any] = {}
        request = {"shell": line, "stdin": False, "background": False, "timeout_s": WARMUP_DEADLINE_S}
        async with await link.open("process.start", request) as channel:
            async for item in channel:
                if isinstance(item, Data):
                    output = (output + item.data)[-4000:]
                elif isinstance(item, Message) and "exited" in item.body:
                    exited = item.body["exited"]
        if exited.get("exit_code") != 0:
            raise BuildFailed(f"{recipe.name}: warm-up failed: {line}\n{output.decode(errors='replace')}")
    if recipe.context:
        progress(f"{recipe.name}: warm-up of the Python context: {', '.join(recipe.context.preload) or 'no libraries'}")
        await _warm_context(link, recipe.name, recipe.context)
    await link.request("settle", {}, timeout_s=120)


async def _warm_context(link: Link, name: str, context: WarmContext) -> None:
    """Start the process that Python contexts are forked from, and in it the context that sandboxes find up."""
    request = {"preload": list(context.preload), "cells": list(context.cells)}
    try:
        await link.request("context.warm", request, timeout_s=WARMUP_DEADLINE_S)
    except SandboxError:
        raise  # the machine's trouble, not the recipe's: another try may do better
    except BelljarError as problem:
        raise BuildFailed(f"{name}: the Python context could not be warmed up: {problem.message}") from problem


def make_disk(path: Path, size_mib: int) -> None:
    """An empty writable disk: sparse, without a journal (a snapshot holds memory and disk of one instant), able to grow."""
    with path.open("wb") as file:
        file.truncate(size_mib << 20)
    options = "lazy_itable_init=1,nodiscard,root_owner=0:0"
    # An ordinary user's PATH often lacks the system directories.
    program = shutil.which("mke2fs") or shutil.which("mke2fs", path="/usr/sbin:/sbin") or "mke2fs"
    argv = [program, "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", options, str(path)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise HostSetup("mke2fs is not installed; run `make setup`, or install the package e2fsprogs") from None
    if done.returncode:
        raise BuildFailed(f"the disk could not be formatted: {done.stderr.strip()[-500:]}")


def _manifest(recipe: Recipe, kernel: KernelImage, root: RootImage, facts: HostFacts, digest: str) -> Manifest:
    return Manifest(
        template=recipe.name,
        template_digest=digest,
        vcpus=recipe.vcpus,
        memory_mib=recipe.memory_mib,
        disk_mib=recipe.disk_mib,
        workdir=recipe.workdir,
        kernel=kernel.release,
        fingerprint=facts.fingerprint.to_json(),
        created_at=time.time(),
        warm_cells=recipe.context.cells if recipe.context else (),
        egress=recipe.egress,
    )


def _point_names(layout: Layout, recipe: Recipe, digest: str) -> None:
    for name in (recipe.name, *recipe.aliases):
        pointer = layout.name(name)
        scratch = pointer.with_name(f".{name}.{os.getpid()}")
        scratch.write_text(digest + "\n")
        scratch.replace(pointer)


# -- looking and removing -----------------------------------------------------------------------------------------------------


def _built(layout: Layout, name: str) -> SavedMachine | None:
    try:
        digest = layout.name(name).read_text().strip()
    except OSError:
        return None
    saved = SavedMachine(layout.template(digest))
    return saved if saved.manifest_file.exists() else None


def _info(layout: Layout, recipe: Recipe) -> TemplateInfo:
    saved = _built(layout, recipe.name)
    if saved is None:
        return TemplateInfo(recipe.name, recipe.aliases, recipe.description, "", 0, None)
    manifest = saved.read_manifest()
    size = folder_bytes(saved.folder) + sum(path.stat().st_blocks * 512 for path in (saved.root, saved.memory))
    return TemplateInfo(recipe.name, recipe.aliases, recipe.description, manifest.template_digest, size, manifest)


def list_templates(settings: Settings) -> list[TemplateInfo]:
    """All recipes, built or not."""
    return [_info(Layout(settings.home), recipe) for recipe in list_recipes(settings.recipes)]


def show_template(settings: Settings, name: str) -> TemplateInfo:
    return _info(Layout(settings.home), load_recipe(name, settings.recipes))


def remove_template(settings: Settings, name: str) -> TemplateInfo:
    """Remove a bake and its names. Sandboxes and snapshots made from it go on: they hold its files themselves."""
    layout = Layout(settings.home)
    recipe = load_recipe(name, settings.recipes)
    info = _info(layout, recipe)
    if not info.digest:
        raise TemplateNotFound(f"template {name!r} is not built; there is nothing to remove")
    for each in (recipe.name, *recipe.aliases):
        layout.name(each).unlink(missing_ok=True)
    still_named = {path.read_text().strip() for path in layout.names.iterdir()}
    if info.digest in still_named:
        raise Conflict(f"the bake of {name!r} is also known under another name; remove that first")
    remove_published(layout.template(info.digest), layout.tmp)
    return info
