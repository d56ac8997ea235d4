"""What a type checker makes of a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import belljar

ROOT = Path(__file__).parent.parent.parent
GOOD = """
import asyncio

import belljar
from belljar import AsyncClient, AsyncSandbox, Candidate, Client, Execution, ExecResult, Result, Sandbox, errors


def show(result: Result) -> None:
    print(result.text, result.image)


def plain() -> None:
    client = Client(timeout=30)
    with Sandbox("base", client=client, metadata={"a": "b"}) as sandbox:
        done: ExecResult = sandbox.exec("echo hi", timeout_seconds=5)
        print(done.stdout, sandbox.run("1").text)
        context = sandbox.create_code_context()
        execution: Execution = context.run("1", on_result=show, on_stdout=print)
        kind: str | None = execution.error.kind if execution.error is not None else None
        with context.stream("2") as cell:
            for event in cell:
                match event:
                    case belljar.Stdout(text) | belljar.Stderr(text):
                        print(text.upper(), kind)
                    case belljar.Output(result):
                        show(result)
                    case _:
                        pass
        print([chunk.data for chunk in sandbox.processes.stream("ls")], cell.execution.text)
        children: list[Sandbox] = sandbox.fork(3)
        child: Sandbox = sandbox.fork({"a": "b"})
        names: list[str] = [entry.name for entry in child.filesystem.listdir("/")]
        with sandbox.ports.forward(80) as port:
            print(port + 1, names, children)
        found = sandbox.explore(["a", Candidate.shell("b", "c")])
        print(found.best()[0].label, [box.template for box in client.sandboxes.iterate()])
    try:
        client.me()
    except belljar.NotFoundError as problem:
        print(problem.code, problem.details)
    except errors.SandboxGone as problem:
        print(problem.message, belljar.__version__)


async def waiting() -> None:
    async with AsyncClient() as client, AsyncSandbox("base", client=client) as sandbox:
        boxes = await asyncio.gather(*(AsyncSandbox.create("base", client=client) for _ in range(16)))
        print([(await box.exec("true")).exit_code for box in boxes], (await AsyncSandbox("base")).id)
        first: AsyncSandbox = await sandbox.fork()
        many: list[AsyncSandbox] = await first.fork(2)
        async with many[0].processes.stream("ls") as process:
            async for chunk in process:
                print(chunk.text)
"""
BAD = """
import belljar

belljar.Sandbx("base")
belljar.Sandbox("base").exec(5)
belljar.Sandbox("base").exec("x").stdot
"""


def check(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(program)
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    return subprocess.run(
        words, cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=500
    )


def test_a_program_that_is_right_passes_in_strict_mode(tmp_path: Path) -> None:
    told = check(tmp_path, GOOD)
    assert told.returncode == 0, told.stdout + told.stderr


def test_slips_are_found(tmp_path: Path) -> None:
    told = check(tmp_path, BAD).stdout
    for line, slip in ((4, "Sandbx"), (5, '"exec"'), (6, "stdot")):
        assert any(found.startswith(f"program.py:{line}: error") and slip in found for found in told.splitlines()), told


def test_a_prompt_can_complete_every_name() -> None:
    assert set(belljar.sdk.public.__all__) <= set(dir(belljar))
