"""Programs from guides that were published for clients of this kind, with the import line changed."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator

import pytest

import belljar
from belljar import Client, Sandbox

PLOT = """
import matplotlib
matplotlib.use("Agg") # headless backend, no display needed
import matplotlib.pyplot as plt
import numpy as np
x = np.linspace(0, 4 * np.pi, 400)
plt.figure(figsize=(8, 4))
plt.plot(x, np.sin(x), label="sin")
plt.legend(); plt.title("trig")
plt.savefig("/workspace/plot.png", dpi=60)
print("wrote /workspace/plot.png")
"""


@pytest.fixture(autouse=True)
def default(client: Client) -> Iterator[None]:
    belljar.set_default_client(client)
    yield
    belljar.set_default_client(None)


def test_one_sandbox_for_an_agents_turn() -> None:
    with Sandbox(template="code-interpreter") as sb:
        for code, out, err in [("print(2 ** 10)", "1024\n", ""), ("import sys; print('no', file=sys.stderr)", "", "no\n")]:
            result = sb.run(f"python -c {shlex.quote(code)}")
            assert (result.stdout, result.stderr) == (out, err)


def test_write_run_and_read_back() -> None:
    with Sandbox.create(template="python-data", ttl_seconds=300) as sbx:
        sbx.filesystem.write("/workspace/plot.py", PLOT)
        result = sbx.exec("python3 /workspace/plot.py", timeout_seconds=120)
        assert result.exit_code == 0, result.stderr
        assert sbx.filesystem.read("/workspace/plot.png").startswith(b"\x89PNG")


def test_charts_come_back_as_objects() -> None:
    with Sandbox.create(template="python-data", ttl_seconds=300) as sbx:
        sbx.filesystem.write("/workspace/sales.csv", "region,revenue\nnorth,1\nsouth,2\n")
        ctx = sbx.create_code_context()
        ctx.run_code("import pandas as pd; df = pd.read_csv('/workspace/sales.csv')", timeout_seconds=60)
        ex = ctx.run_code(
            "import matplotlib; matplotlib.use('Agg')\n"
            "import matplotlib.pyplot as plt\n"
            "df.groupby('region')['revenue'].sum().plot.bar()\n"
            "plt.tight_layout()",
            timeout_seconds=120,
        )
        assert ex.error is None and ex.png is not None
        assert base64.b64decode(ex.png) == ex.image and len(ex.results) >= 1


class CodeInterpreter:
    def __init__(self) -> None:
        self.sbx = Sandbox.create(template="base", persistent=True)
        self._n = 0

    def run(self, code: str) -> dict[str, object]:
        self._n += 1
        path = f"/workspace/cell_{self._n}.py"
        self.sbx.filesystem.write(path, code)
        r = self.sbx.exec(f"python3 {path}", timeout_seconds=60)
        return {"exit_code": r.exit_code, "stdout": r.stdout, "stderr": r.stderr}

    def close(self) -> None:
        self.sbx.kill()


def test_a_tool_for_a_model() -> None:
    interpreter = CodeInterpreter()
    try:
        assert interpreter.run("print(2 ** 10)") == {"exit_code": 0, "stdout": "1024\n", "stderr": ""}
        assert interpreter.run("raise SystemExit(3)")["exit_code"] == 3
    finally:
        interpreter.close()


def test_a_volume_is_a_clear_error() -> None:
    with pytest.raises(belljar.BadRequestError, match="no volumes"):
        belljar.Volume.get_or_create(name="user-1-workspace", size_gb=20)
