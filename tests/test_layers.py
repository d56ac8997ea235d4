"""Imports point down: each layer uses only those below it, so that each can be understood, and used, without those above."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "belljar"
ALLOWED = {
    "errors": set(),
    "wire": set(),
    "settings": {"errors"},
    "guest": {"wire"},
    "kernel": {"wire"},
    "vm": {"wire", "errors"},
    "store": {"errors", "settings"},
    "egress": {"errors", "settings"},
    "templates": {"vm", "store", "egress", "errors", "settings"},
    "fleet": {"vm", "store", "egress", "templates", "wire", "errors", "settings"},
    "service": {"fleet", "egress", "store", "templates", "errors", "settings"},
    "server": {"service", "store", "templates", "errors", "settings"},
    "cli": {"sdk", "fleet", "server", "service", "templates", "store", "vm", "errors", "settings"},
    "sdk": {"errors"},
    "demo": {"fleet", "templates", "errors", "settings"},
}


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("belljar.")}
    return found


def test_imports_point_down() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        layer = layer_of(path)
        if layer != "__init__":
            wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in imports_of(path) - ALLOWED[layer] - {layer}]
    assert not wrong, "\n".join(wrong)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, belljar; print([m for m in sys.modules if m.startswith('belljar.') or m == 'numpy'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
