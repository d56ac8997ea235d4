"""The plain half of the SDK is what the generator makes of the asynchronous half."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SDK = ROOT / "belljar" / "sdk"


def test_the_generated_code_is_current() -> None:
    ran = subprocess.run([sys.executable, str(ROOT / "scripts/generate-sync"), "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_nothing_asynchronous_is_left_in_it() -> None:
    kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    for path in set((SDK / "_sync").glob("*.py")) - {SDK / "_sync/forwarding.py"}:  # that one runs the other half in a thread
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [node.lineno for node in ast.walk(tree) if isinstance(node, kinds)]
        found += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id.startswith(("Async", "asyncio"))]
        assert not found, f"{path.name}: lines {found}"


def names_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    }


def test_what_is_written_twice_by_hand_has_the_same_names() -> None:
    for name in ("adaptors.py", "interacting.py"):
        plain, waiting = names_of(SDK / "_sync" / name), names_of(SDK / "_async" / name)
        assert waiting - plain == set() and plain - waiting <= {"CancelEvent"}, name
