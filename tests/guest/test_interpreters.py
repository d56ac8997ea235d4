"""Code contexts as the agent keeps them: cells, budgets, queues, failures, and those who come and go."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from belljar.errors import BelljarError, Conflict, ContextNotFound, FileMissing, InvalidInput, NotFound, NotSupported, SandboxError
from tests.guest.cells import Cell, attach, begin, collect, create, info, run, wait_state
from tests.guest.conftest import DEADLINE_S, Guest
from tests.guest.test_processes import wait_for, wait_until_dead

REPO = Path(__file__).parents[2]


@pytest.fixture
def venv(guest: Guest) -> Path:
    """An environment whose Python is the fake kernel."""
    venv = guest.home.parent / "venv"
    for package in ("IPython", "jupyter_client"):
        folder = venv / "lib/python3.11/site-packages" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    for kernel in ("fake", "broken", "python3", "slow"):
        folder = venv / "share/jupyter/kernels" / kernel
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text("{}")
    python = venv / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -S {Path(__file__).parent}/fake_kernel.py "$@"\n')
    python.chmod(0o755)
    return venv


# -- which there are


async def test_languages_are_those_that_the_sandbox_has(guest: Guest, venv: Path) -> None:
    languages = (await guest.ask("context.languages"))["languages"]
    assert languages[:2] == ["python", "bash"]
    assert languages[-4:] == ["broken", "fake", "jupyter:python3", "slow"]
    shutil.rmtree(venv / "lib")
    assert set((await guest.ask("context.languages"))["languages"]) <= {"bash", "javascript", "typescript"}
    with pytest.raises(NotSupported, match="IPython"):
        await create(guest, "python")


async def test_unknown_language_is_refused_with_a_list_of_what_there_is(guest: Guest, venv: Path) -> None:
    with pytest.raises(NotSupported, match=r"cobol.*python, bash.*fake"):
        await create(guest, "cobol")
    with pytest.raises(NotSupported):
        await create(guest, "../fake")
    with pytest.raises(FileMissing):
        await create(guest, "fake", cwd="/nowhere")
    with pytest.raises(InvalidInput):
        await create(guest, "fake", user="nobody-here")


async def test_kernel_that_cannot_start_is_told_with_its_last_words(guest: Guest, venv: Path) -> None:
    with pytest.raises(SandboxError, match="this kernel is broken"):
        await create(guest, "broken")
    assert (await guest.ask("context.list"))["contexts"] == []


async def test_context_that_does_not_get_ready_can_be_deleted(guest: Guest, venv: Path) -> None:
    creating = asyncio.create_task(create(guest, "slow"))
    async with asyncio.timeout(DEADLINE_S):
        while not (contexts := (await guest.ask("context.list"))["contexts"]) or contexts[0]["pid"] is None:
            await asyncio.sleep(0.01)
    assert contexts[0]["state"] == "starting"
    await guest.ask("context.delete", id=contexts[0]["id"])
    with pytest.raises(Conflict):
        await creating
    await wait_until_dead(contexts[0]["pid"])


# -- cells


async def test_events_come_in_order_and_bytes_are_exact(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    png = os.urandom(300_000)
    (guest.home / "png").write_bytes(png)
    cell = await run(
        guest,
        context,
        """
print("before")
png = open("png", "rb").read()
parts = [{"mime": "image/png", "size": len(png), "kind": "binary"}, {"mime": "text/plain", "size": 2, "kind": "text"}]
send({"ev": "output", "n": n, "main": True, "parts": parts, "metadata": {"a": 1}, "display_id": "d", "update": False}, png + b"ok")
send({"ev": "clear", "n": n, "wait": True})
print("after", file=sys.stderr)
""",
    )
    assert cell.order[0] == "started" and cell.order[-1] == "done" and cell.error is None
    assert cell.order.index("stdout") < cell.order.index("output") < cell.order.index("clear")
    ((header, blob),) = cell.outputs
    assert blob == png + b"ok" and (header["metadata"], header["display_id"], header["main"]) == ({"a": 1}, "d", True)
    assert (cell.stdout, cell.stderr) == (b"before\n", b"after\n")
    assert cell.started["count"] == cell.done["count"] == 1
    assert cell.done["duration_s"] == 0.5 and cell.done["truncated"] == {"stdout": None, "stderr": None, "results": None}
    assert (await run(guest, context, "")).done["count"] == 2


async def test_error_of_a_cell_is_data_and_its_kind_is_told(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    for code, kind in {
        "1/0": "exception",
        "sys.exit(3)": "exit",
        "raise MemoryError": "out_of_memory",
        "send({'ev': 'error', 'n': n, 'name': 'OSError', 'value': '', 'traceback': [], 'errno': 28})": "disk_full",
        "raise KeyboardInterrupt": "exception",
    }.items():
        cell = await run(guest, context, code)
        assert (cell.kind, cell.error and cell.error["state_lost"]) == (kind, False), code
        assert cell.order[-2:] == ["error", "done"]


async def test_huge_error_is_shortened_to_fit(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    cell = await run(
        guest, context, "send({'ev': 'error', 'n': n, 'name': 'E' * 999, 'value': 'é' * 9999, 'traceback': ['ü' * 100] * 1500})"
    )
    assert cell.error is not None and "more characters" in cell.error["value"]
    assert any("left out" in line for line in cell.error["traceback"])


async def test_long_code_travels_as_data(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = b"x = '" + b"y" * 3_000_000 + "ü'\nprint(len(x))".encode()

    async def send(data: bytes) -> Cell:
        async with await guest.link.open("context.run", {"id": context}) as channel:
            with suppress(BelljarError):  # refused before all of it was sent
                await channel.send(data)
                channel.end()
            return await collect(channel)

    assert (await send(code)).stdout == b"3000001\n"
    with pytest.raises(InvalidInput, match="4194304"):
        await send(b"#" * 4_300_000)
    with pytest.raises(InvalidInput, match="UTF-8"):
        await send(b"\xff")
    assert (await run(guest, context, "print(1)")).stdout == b"1\n"


async def test_stdin_and_flags_reach_the_kernel(guest: Guest, venv: Path) -> None:
    context = await create(guest, cwd=str(guest.home), env={"MINE": "1"})
    cell = await run(guest, context, "print(message['stdin'], message['changes'], os.environ['MINE'])", stdin="é", changes=True)
    assert cell.stdout.decode() == "é True 1\n"


async def test_changes_are_passed_on_and_shortened_to_fit(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = """
var = {"type": "T", "shape": "(3,)", "size_bytes": 24, "preview": "p" * 200}
names = {"added": [{"name": f"v{i}", **var} for i in range(COUNT)], "changed": [], "removed": ["gone"]}
files = {"added": [{"path": "/f", "size": 3}], "changed": [], "removed": [], "complete": True}
send({"ev": "done", "n": n, "count": 7, "duration_s": 0, "changes": {"variables": names, "files": files}})
state["n"] = n
"""
    few = (await run(guest, context, code.replace("COUNT", "2"))).done
    assert few["count"] == 7 and few["changes"]["files"]["complete"] and len(few["changes"]["variables"]["added"]) == 2
    many = (await run(guest, context, code.replace("COUNT", "3000"))).done["changes"]
    assert 50 < len(many["variables"]["added"]) < 3000 and not many["variables"]["complete"]
    assert many["files"]["added"] == [{"path": "/f", "size": 3}]


async def test_silent_cell_leaves_no_trace(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    assert (await run(guest, context, "print(message['count'])", silent=True)).stdout == b"False\n"
    assert (await info(guest, context))["cells"] == 0
    with pytest.raises(NotFound):
        await attach(guest, context)
    assert (await run(guest, context, "1")).started["count"] == 1


# -- budgets


async def test_long_output_comes_as_head_and_tail_and_whole_in_a_file(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    line = "0123456789 é €\n"
    cell = await run(guest, context, f"for _ in range(100_000): print({line!r}, end='')", max_output=10_001)
    whole = (line * 100_000).encode()
    cut = cell.done["truncated"]["stdout"]
    head, tail = cell.stdout[: cut["head"]], cell.stdout[cut["head"] :]
    assert whole.startswith(head) and whole.endswith(tail)
    head.decode()
    tail.decode()
    assert len(cell.stdout) + cut["omitted"] == len(whole) and 9_990 < len(cell.stdout) <= 10_001
    assert cut["complete"] and Path(cut["file"]).read_bytes() == whole
    Path(cut["file"]).unlink()


@pytest.mark.parametrize(("size", "cut"), [(10_000, False), (10_001, True)])
async def test_output_is_cut_only_beyond_its_budget(guest: Guest, venv: Path, size: int, cut: bool) -> None:
    context = await create(guest)
    cell = await run(guest, context, f"sys.stderr.write('x' * {size})", max_output=10_000)
    assert cell.stderr == b"x" * 10_000
    assert bool(cell.done["truncated"]["stderr"]) is cut and cell.done["truncated"]["stdout"] is None


async def test_flood_of_output_does_not_grow_the_agent(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    await run(guest, context, "os.write(1, b'x' * 5_000_000)")
    before = _resident(guest.pid)
    cell = await run(guest, context, "for _ in range(400): os.write(1, b'y' * 1_000_000)")
    cut = cell.done["truncated"]["stdout"]
    assert cut["omitted"] == 400_000_000 - 1_048_576 and Path(cut["file"]).stat().st_size == 400_000_000
    assert _resident(guest.pid) - before < 32 << 20
    for path in Path("/tmp/belljar-output").glob(f"{context}-*"):
        path.unlink()


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_results_beyond_their_budget_become_files_and_notes(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = """
for size in (1000, 5000, 800):
    parts = [{"mime": "image/png", "size": size, "kind": "binary"}]
    send({"ev": "output", "n": n, "main": size == 5000, "parts": parts, "metadata": {}}, b"p" * size)
"""
    cell = await run(guest, context, code, max_results=4000)
    cut = cell.done["truncated"]["results"]
    assert [len(blob) for _, blob in cell.outputs][::2] == [1000, 800]
    assert cell.outputs[1][0]["main"] and cut["file"] in cell.text
    assert (cut["omitted"], cut["complete"]) == (5000, True)
    assert Path(cut["file"]).read_bytes() == b"p" * 5000 and cut["file"].endswith(".png")
    Path(cut["file"]).unlink()


async def test_flood_of_tiny_results_has_an_end(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = "for _ in range(30_000): send({'ev': 'output', 'n': n, 'main': False, 'parts': [], 'metadata': {}})"
    cell = await run(guest, context, code, max_results=100_000)
    assert len(cell.outputs) < 1000 and cell.error is None


# -- kernels that misbehave


@pytest.mark.parametrize(
    "code",
    [
        "os.write(int(os.environ['BELLJAR_CONTROL_FD']), b'x' * 100)",
        "send({'ev': 'nonsense'})",
        "send({'ev': 'output', 'n': n, 'main': True, 'parts': [{'mime': 'a/b', 'size': 9, 'kind': 'text'}], 'metadata': {}}, b'x')",
        "send({'ev': 'output', 'n': n, 'parts': 'none'})",
        "send({'ev': 'error', 'n': n, 'name': 1, 'value': '', 'traceback': []})",
        "send({'ev': 'done', 'n': n, 'count': -1, 'duration_s': 0})",
        "send({'ev': 'done', 'n': n, 'count': 1, 'duration_s': float('nan')})",
        "send({'ev': 'done', 'n': n, 'count': 1, 'duration_s': 1, 'changes': [1]})",
        "os.close(int(os.environ['BELLJAR_CONTROL_FD'])); time.sleep(600)",
    ],
)
async def test_kernel_that_breaks_the_protocol_is_replaced(guest: Guest, venv: Path, code: str) -> None:
    context = await create(guest)
    pid = (await info(guest, context))["pid"]
    cell = await run(guest, context, f"print('said', flush=True)\n{code}\ntime.sleep(600)")
    assert cell.kind == "died" and cell.error is not None and cell.error["state_lost"] and "protocol" in cell.error["value"]
    assert cell.stdout == b"said\n"
    await wait_until_dead(pid)
    assert (await run(guest, context, "print('next')")).stdout == b"next\n"


async def test_events_of_another_cell_are_ignored(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    cell = await run(guest, context, "send({'ev': 'done', 'n': n + 1, 'count': 1, 'duration_s': 0, 'changes': None})\nprint(1)")
    assert cell.stdout == b"1\n" and cell.error is None


@pytest.mark.parametrize(("code", "words"), [("os._exit(3)", "exit status 3"), ("os.kill(os.getpid(), 11)", "SIGSEGV")])
@pytest.mark.parametrize("language", ["fake", "python"])
async def test_kernel_that_dies_is_told_and_replaced(guest: Guest, venv: Path, language: str, code: str, words: str) -> None:
    context = await create(guest, language)
    cell = await run(guest, context, f"state['x'] = 1; os.write(1, b'last words')\n{code}")
    assert cell.kind == "died" and cell.error is not None and words in cell.error["value"] and cell.error["state_lost"]
    assert cell.stdout == b"last words"
    assert (await run(guest, context, "print('x' in state)")).stdout == b"False\n"


async def test_death_between_cells_is_told_to_the_next_one(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    await run(guest, context, "state['x'] = 1")
    pid = (await info(guest, context))["pid"]
    os.kill(pid, signal.SIGKILL)
    await wait_until_dead(pid)
    cell = await run(guest, context, "print(1)")
    assert cell.kind == "died" and cell.error is not None and "SIGKILL" in cell.error["value"] and cell.stdout == b""
    assert (await run(guest, context, "print('x' in state)")).stdout == b"False\n"


async def test_what_is_written_between_cells_comes_with_the_next(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = "if os.fork() == 0:\n    time.sleep(0.2)\n    os.write(1, b'late ')\n    open('late', 'w').write('x')\n    os._exit(0)"
    await run(guest, context, code)
    await wait_for(guest.home / "late")
    assert (await run(guest, context, "print('now')")).stdout == b"late now\n"


# -- stopping


async def test_timeout_interrupts_and_keeps_the_state(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    cell = await run(guest, context, "state['x'] = 1\ntime.sleep(600)", timeout_s=0.2)
    assert cell.error is not None and (cell.kind, cell.error["state_lost"]) == ("timeout", False)
    assert cell.error["traceback"] == ["a", "b"], "where it was when its time ran out"
    assert (await run(guest, context, "print(state['x'])", timeout_s=60)).stdout == b"1\n"
    swallowed = "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('swallowed')"
    cell = await run(guest, context, swallowed, timeout_s=0.2)
    assert cell.kind == "timeout" and cell.stdout == b"swallowed\n"


async def test_cell_that_cannot_be_interrupted_costs_the_state(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    pid = (await info(guest, context))["pid"]
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nstate['x'] = 1\nprint('up', flush=True)\ntime.sleep(600)"
    cell = await run(guest, context, code, timeout_s=0.2)
    assert cell.error is not None and (cell.kind, cell.error["state_lost"]) == ("timeout", True) and cell.stdout == b"up\n"
    await wait_until_dead(pid)
    assert (await run(guest, context, "print('x' in state)")).stdout == b"False\n"


async def test_interrupt_ends_the_running_cell_and_no_other(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    assert await guest.ask("context.interrupt", id=context) == {"interrupted": False}
    async with await begin(guest, context, "mark('up')\ntime.sleep(600)") as channel:
        await wait_for(guest.home / "up")
        waiting = asyncio.create_task(run(guest, context, "print('second')"))
        await wait_state(guest, context, "busy", queued=1)
        assert await guest.ask("context.interrupt", id=context) == {"interrupted": True}
        assert (await collect(channel)).kind == "interrupted"
        assert (await waiting).stdout == b"second\n"


async def test_cells_run_in_order_and_the_queue_has_an_end(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    async with await begin(guest, context, "time.sleep(600)") as first:
        log = "open('log', 'a').write('%d ')"
        tasks = []
        for number in range(64):
            tasks.append(asyncio.create_task(run(guest, context, log % number)))
            await wait_state(guest, context, "busy", queued=number + 1)
        with pytest.raises(Conflict):
            await run(guest, context, "")
        await guest.ask("context.interrupt", id=context)
        assert (await collect(first)).kind == "interrupted"
    await asyncio.gather(*tasks)
    assert (guest.home / "log").read_text().split() == [str(number) for number in range(64)]


@pytest.mark.parametrize("operation", ["delete", "restart"])
async def test_delete_and_restart_end_what_runs_and_what_waits(guest: Guest, venv: Path, operation: str) -> None:
    context = await create(guest)
    before = (await info(guest, context))["pid"]
    async with await begin(guest, context, "print('up', flush=True); time.sleep(600)") as running:
        waiting = asyncio.create_task(run(guest, context, "print('no')"))
        await wait_state(guest, context, "busy", queued=1)
        await guest.ask(f"context.{operation}", id=context)
        cell, never = await collect(running), await waiting
    for ended in (cell, never):
        assert ended.kind == "interrupted" and ended.error is not None and operation[:6] in ended.error["value"]
        assert ended.order[-2:] == ["error", "done"] and ended.error["state_lost"]
    assert never.stdout == b""
    await wait_until_dead(before)
    if operation == "delete":
        with pytest.raises(ContextNotFound):
            await run(guest, context, "1")
        assert (await guest.ask("context.list"))["contexts"] == []
    else:
        assert (await run(guest, context, "print('fresh')")).stdout == b"fresh\n"
        assert (await info(guest, context))["pid"] != before


async def test_processes_of_a_context_end_with_it(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = "import subprocess; open('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"
    await run(guest, context, code)
    pid = int(await wait_for(guest.home / "pid"))
    await guest.ask("context.delete", id=context)
    await wait_until_dead(pid)


# -- clients that go, and come back


@pytest.mark.parametrize("choice", ["interrupt", "continue"])
async def test_client_that_resets_interrupts_its_cell_or_lets_it_run(guest: Guest, venv: Path, choice: str) -> None:
    context = await create(guest)
    code = "mark('up')\nfor _ in range(2000):\n    if os.path.exists('go'): break\n    time.sleep(0.01)\n"
    code += "print('whole')"
    channel = await begin(guest, context, code, on_disconnect=choice)
    await wait_for(guest.home / "up")
    await channel.aclose()
    if choice == "continue":
        (guest.home / "go").touch()
    cell = await attach(guest, context)
    assert (cell.kind, cell.stdout) == (("interrupted", b"") if choice == "interrupt" else (None, b"whole\n"))


async def test_cell_that_waits_is_not_run_when_its_client_is_gone(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    async with await begin(guest, context, "time.sleep(600)") as first:
        waiting = await guest.link.open("context.run", {"id": context, "code": "open('ran', 'w')"})
        staying = await guest.link.open("context.run", {"id": context, "code": "print('stays')", "on_disconnect": "continue"})
        await wait_state(guest, context, "busy", queued=2)
        await waiting.aclose()
        await staying.aclose()
        await wait_state(guest, context, "busy", queued=1)
        await guest.ask("context.interrupt", id=context)
        await collect(first)
    await wait_state(guest, context, "idle")
    assert (await attach(guest, context)).stdout == b"stays\n" and not (guest.home / "ran").exists()


async def test_lost_session_leaves_the_cell_running_and_attach_replays_it(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = """
print("first", flush=True)
send({"ev": "output", "n": n, "main": True, "parts": [{"mime": "text/plain", "size": 3, "kind": "text"}], "metadata": {}}, b"one")
mark("up")
for _ in range(2000):
    if os.path.exists("go"): break
    time.sleep(0.01)
print("last")
"""
    channel = await begin(guest, context, code, on_disconnect="interrupt")
    await wait_for(guest.home / "up")
    await guest.reconnect()
    with suppress(BelljarError):
        await channel.aclose()
    following = [asyncio.create_task(attach(guest, context)) for _ in range(2)]
    await wait_state(guest, context, "busy")
    (guest.home / "go").touch()
    for cell in await asyncio.gather(*following):
        assert (cell.kind, cell.stdout, cell.text) == (None, b"first\nlast\n", "one")
    again = await attach(guest, context, execution=cell.started["execution"])
    assert (again.stdout, again.done) == (cell.stdout, cell.done)
    await run(guest, context, "print('other')")
    assert (await attach(guest, context)).stdout == b"other\n"
    with pytest.raises(NotFound):
        await attach(guest, context, execution=cell.started["execution"])


async def test_slow_reader_gets_everything_though_the_next_cell_has_run(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    code = "parts = [{'mime': 'image/png', 'size': 3_000_000, 'kind': 'binary'}]\nmark('up')\n"
    code += "send({'ev': 'output', 'n': n, 'main': True, 'parts': parts, 'metadata': {}}, b'p' * 3_000_000)"
    async with await guest.link.open("context.run", {"id": context, "code": code}) as slow:
        await wait_for(guest.home / "up")
        assert (await run(guest, context, "print(1)")).stdout == b"1\n"
        cell = await collect(slow)
    assert cell.text == "p" * 3_000_000


# -- Python: the zygote


async def test_default_context_is_warm_and_given_to_the_first_who_asks(guest: Guest, venv: Path) -> None:
    assert await guest.ask("context.warm", preload=["json"], cells=["state['warm'] = 1"]) == {"version": "3.x"}
    assert (await info(guest, "default"))["cells"] == 0
    await run(guest, "default", "1", silent=True)
    assert await create(guest, "python", env={"A": "1"}) != "default"
    assert await create(guest, "py") == "default"
    assert await create(guest, "python3") != "default"
    cell = await run(guest, "default", "print('warm' in state)")
    assert (cell.stdout, cell.started["count"]) == (b"True\n", 1)


async def test_default_context_that_was_used_is_not_given_away(guest: Guest, venv: Path) -> None:
    await guest.ask("context.warm", preload=[], cells=[])
    await run(guest, "default", "state['secret'] = 1")
    other = await create(guest, "python")
    assert (await run(guest, other, "print('secret' in state)")).stdout == b"False\n"


async def test_warm_up_that_fails_is_told(guest: Guest, venv: Path) -> None:
    with pytest.raises(InvalidInput, match="no_such"):
        await guest.ask("context.warm", preload=["no_such", "json"], cells=[])
    with pytest.raises(InvalidInput, match="ZeroDivisionError"):
        await guest.ask("context.warm", preload=[], cells=["1", "1/0"])


async def test_killed_zygote_is_replaced_and_its_contexts_live_on(guest: Guest, venv: Path) -> None:
    first = await create(guest, "python")
    pid = (await info(guest, first))["pid"]
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    await wait_until_dead(parent)
    assert (await run(guest, first, "state['x'] = 1; print('lives')")).stdout == b"lives\n"
    second = await create(guest, "python")
    assert (await run(guest, second, "print('works')")).stdout == b"works\n"
    assert (await run(guest, first, "os._exit(1)")).kind == "died"
    assert (await run(guest, first, "print('x' in state)")).stdout == b"False\n"


async def test_variables_are_listed_for_python_and_fit_a_message(guest: Guest, venv: Path) -> None:
    context = await create(guest, "python")
    answer = await guest.ask("context.variables", id=context)
    assert [var["name"] for var in answer["variables"]] == ["v0"] and answer["omitted"] == 0
    await run(guest, context, "state['variables'] = 2000")
    answer = await guest.ask("context.variables", id=context)
    assert len(answer["variables"]) + answer["omitted"] == 2000 and answer["omitted"] > 0
    with pytest.raises(NotSupported):
        await guest.ask("context.variables", id=await create(guest))


async def test_thaw_reaches_every_context(guest: Guest, venv: Path) -> None:
    await guest.ask("context.warm", preload=[], cells=[])
    used, own = await create(guest, env={"BOTH": "own"}), await create(guest, "python", cwd=str(guest.home))
    await run(guest, used, "1")
    elsewhere = guest.home / "elsewhere"
    elsewhere.mkdir()
    await guest.ask("thaw", env={"BOTH": "thaw", "NEW": "1"}, cwd=str(elsewhere))
    show = "print(os.environ['BOTH'], os.environ['NEW'], os.getcwd(), state['reseeded'])"
    for context, both, cwd, reseeded in (
        ("default", "thaw", elsewhere, 1),
        (used, "own", guest.home, 0),
        (own, "thaw", guest.home, 1),
        (await create(guest, "python", user=None, env={"X": ""}), "thaw", elsewhere, 0),
    ):
        assert (await run(guest, context, show)).stdout.decode() == f"{both} 1 {cwd} {reseeded}\n", context


# -- many


async def test_contexts_run_side_by_side(guest: Guest, venv: Path) -> None:
    contexts = [await create(guest, language) for language in ("fake", "python") * 5]
    meet = "open('here-%d', 'w').write('x')\nwhile sum(name.startswith('here-') for name in os.listdir('.')) < 10: time.sleep(0.01)"
    cells = await asyncio.gather(*(run(guest, context, meet % number) for number, context in enumerate(contexts)))
    assert all(cell.error is None for cell in cells)


async def test_nothing_leaks_over_a_thousand_cells_and_many_contexts(guest: Guest, venv: Path) -> None:
    context = await create(guest)
    await create(guest, "python")

    async def load(cells: int, contexts: int) -> None:
        for number in range(cells):
            await run(guest, context, f"print('x' * 1000)\nstate[{number % 10}] = n")
        for number in range(contexts):
            other = await create(guest, ("fake", "python", "bash")[number % 3])
            await run(guest, other, "print(1)" if number % 3 < 2 else "echo 1")
            await guest.ask("context.delete", id=other)

    def used() -> tuple[int, int]:
        return len(list(Path(f"/proc/{guest.pid}/fd").iterdir())), _resident(guest.pid)

    await load(100, 6)
    fds, memory = used()
    await load(1000, 12)
    async with asyncio.timeout(DEADLINE_S):
        while used()[0] > fds:
            await asyncio.sleep(0.05)
    assert used()[1] - memory < 4 << 20
