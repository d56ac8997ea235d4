"""From a name to something a machine can start from: the current bake of a template, or a snapshot."""

from __future__ import annotations

import asyncio

from belljar.errors import InvalidInput, SnapshotNotFound, TemplateNotFound
from belljar.fleet.context import Context, Origin
from belljar.fleet.launching import check_restorable
from belljar.store.layout import part
from belljar.store.manifest import SavedMachine
from belljar.vm.memory import MemoryImage, borrow_image, load_image, no_pages
from belljar.vm.rundir import read_record


def find_template(context: Context, name: str) -> SavedMachine:
    """The folder of the template that `name` means now."""
    part("template name", name)
    try:
        digest = context.layout.name(name).read_text().strip()
    except OSError:
        known = sorted(entry.name for entry in context.layout.names.iterdir())
        there_are = f"there are: {', '.join(known)}" if known else "none are built yet"
        raise TemplateNotFound(f"no template {name!r}; {there_are}. `belljar template build NAME` builds one.") from None
    return SavedMachine(context.layout.template(digest))


async def template_origin(context: Context, name: str) -> Origin:
    """The current bake of a template, its memory loaded or lent by a machine that runs on it."""
    if not isinstance(name, str):
        raise InvalidInput(f"template must be a name, not {type(name).__name__}")
    saved = await asyncio.to_thread(find_template, context, name)
    manifest = await asyncio.to_thread(saved.read_manifest)
    await asyncio.to_thread(saved.check_complete, delta=False)
    check_restorable(context, manifest)
    size = manifest.memory_mib << 20

    def load() -> MemoryImage:
        return _lent(context, manifest.template_digest, size) or load_image(saved.memory, size)

    return Origin(saved, manifest, await context.images.get(f"template {manifest.template_digest}", load))


def _lent(context: Context, digest: str, size: int) -> MemoryImage | None:
    """The template's image out of a live machine, so that machines started by different processes share their pages too."""
    for record in context.records.list_sandboxes(states=("running", "paused", "pooled")):
        folder = context.layout.sandbox(record.id)
        # One with a page map runs on a memory of its own: of a snapshot, of its parent, or of its sleep. That is nobody else's.
        if record.template_digest != digest or SavedMachine(folder).pagemap.exists():
            continue
        machine = read_record(folder)
        if machine and (image := borrow_image(machine.pid, machine.ram_fd, machine.ram_identity, size, no_pages(size))):
            return image
    return None


async def snapshot_origin(context: Context, snapshot_id: str) -> Origin:
    """A snapshot, its memory loaded."""
    if not isinstance(snapshot_id, str):
        raise InvalidInput(f"snapshot must be an id, not {type(snapshot_id).__name__}")
    await asyncio.to_thread(context.records.get_snapshot, snapshot_id)
    saved = SavedMachine(context.layout.snapshot(snapshot_id))
    if not saved.folder.exists():
        raise SnapshotNotFound(f"the files of snapshot {snapshot_id} are gone; remove it with `belljar snapshot rm`")
    manifest = await asyncio.to_thread(saved.read_manifest)
    await asyncio.to_thread(saved.check_complete, delta=True)
    check_restorable(context, manifest)

    def load() -> MemoryImage:
        return load_image(saved.memory, manifest.memory_mib << 20, saved.pages, saved.pagemap)

    return Origin(saved, manifest, await context.images.get(f"snapshot {snapshot_id}", load))
