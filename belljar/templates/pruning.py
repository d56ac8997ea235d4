"""What builds have left behind: bakes that no name means any more, kernels and root images that no bake or recipe uses.

A change of the agent, of a recipe or of QEMU makes a new bake beside the old one; sandboxes and snapshots hold the old one's files
themselves, so it can go.
"""

from __future__ import annotations

import time
from pathlib import Path

from belljar.settings import Settings
from belljar.store.layout import Layout
from belljar.store.publish import remove_published
from belljar.templates.kernel import build_kernel
from belljar.templates.recipe import list_recipes

# Someone may be about to use what was made a moment ago.
MIN_AGE_S = 600.0


def prune(settings: Settings, *, min_age_s: float = MIN_AGE_S) -> list[Path]:
    """Remove what nothing refers to; returns what was removed."""
    layout = Layout(settings.home)
    layout.prepare()
    named = {path.read_text().strip() for path in layout.names.iterdir()}
    roots = {recipe.root_digest for recipe in list_recipes(settings.recipes)}
    kernel = build_kernel(layout, lambda line: None).digest
    unused = [path for path in layout.templates.iterdir() if path.name not in named]
    unused += [path for path in layout.kernels.iterdir() if path.name != kernel]
    unused += [path for path in layout.roots.iterdir() if path.name not in roots]
    old = [path for path in unused if time.time() - path.stat().st_mtime > min_age_s]
    for path in old:
        remove_published(path, layout.tmp)
    return old
