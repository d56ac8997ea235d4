"""Belljar: a code interpreter that you own. Every sandbox is a microVM.

`from belljar import Sandbox` is the client of a Belljar server (docs/sdk.md). Its names are loaded when they are first used, so
that the parts that need no client do not pay for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.sdk.public import *  # noqa: F403
else:  # or a type checker would take every name for one of ours

    def __getattr__(name):
        if not name.startswith("_") or name == "__version__":
            public = import_module("belljar.sdk.public")
            if name in public.__all__:
                return getattr(public, name)
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *import_module("belljar.sdk.public").__all__})
