"""Which languages this sandbox can run: found by looking at its files, when somebody asks."""

# Paths stay strings, as in the rest of the agent.
# ruff: noqa: PTH100, PTH118, PTH119, PTH120, PTH207

from __future__ import annotations

import glob
import os
import re
import sys
from typing import Final, NamedTuple

from belljar.guest.context import PATH, Context
from belljar.guest.failure import Failure
from belljar.guest.kernelmessages import shorten
from belljar.guest.spawn import find_programs
from belljar.wire.languages import ALIASES

KERNELS: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kernel")
JUPYTER: Final = "jupyter:"  # before a kernel's name that means something else without

_NATIVE: Final = ("python", "bash", "javascript", "typescript")
_KERNEL_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Language(NamedTuple):
    """`argv` starts its kernel; a zygote makes one instead if it is empty."""

    name: str
    argv: tuple[str, ...]


def find_language(context: Context, wanted: str) -> Language:
    lowered = wanted.lower()
    name = ALIASES.get(lowered, lowered if lowered in _NATIVE else wanted)
    argv = _find_native(context, name) if name in _NATIVE else _find_jupyter(context, name)
    if argv is None:
        there = list_languages(context)
        why = " (it needs IPython in the sandbox's environment)" if name == "python" else ""
        has = ", ".join(there) or "nothing"
        raise Failure("not_supported", f"this sandbox cannot run {shorten(wanted, 100)!r}{why}; it has: {has}", languages=there)
    return Language(name, argv)


def list_languages(context: Context) -> list[str]:
    native = [name for name in _NATIVE if _find_native(context, name) is not None]
    taken = {*_NATIVE, *ALIASES}
    return native + [JUPYTER + name if name.lower() in taken else name for name in _jupyter_kernels(context)]


def _find_native(context: Context, name: str) -> tuple[str, ...] | None:
    if name == "python":
        return () if _has_package(context, "IPython") else None
    if name == "bash":
        return (sys.executable, "-I", "-S", "-B", os.path.join(KERNELS, "bash.py")) if _find_program("bash") else None
    node = _find_program("node")
    # Without the flag Node.js ends itself when a callback was cut short by an interrupt.
    flags = ("--no-warnings", "--no-force-async-hooks-checks")
    return (node, *flags, os.path.join(KERNELS, "node.js"), name) if node else None


def _find_jupyter(context: Context, name: str) -> tuple[str, ...] | None:
    kernel = name.removeprefix(JUPYTER)
    if kernel not in _jupyter_kernels(context):
        return None
    return (os.path.join(context.venv, "bin/python"), os.path.join(KERNELS, "jupyter.py"), kernel)


def _jupyter_kernels(context: Context) -> list[str]:
    if not _has_package(context, "jupyter_client"):
        return []
    pattern = os.path.join(context.venv, "share/jupyter/kernels/*/kernel.json")
    names = (os.path.basename(os.path.dirname(path)) for path in glob.glob(pattern))
    return sorted(name for name in names if _KERNEL_NAME.fullmatch(name))


def _has_package(context: Context, name: str) -> bool:
    return bool(glob.glob(os.path.join(context.venv, "lib/python3*/site-packages", name, "__init__.py")))


def _find_program(name: str) -> str | None:
    return next((path for path in find_programs(name, PATH) if os.access(path, os.X_OK)), None)
