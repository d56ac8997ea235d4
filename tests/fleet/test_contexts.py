"""Contexts in real sandboxes: what cells mean, how contexts live side by side, what control they allow, and what they survive."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import zipfile

import pytest

from belljar.errors import Conflict, ContextNotFound, NotSupported
from belljar.fleet.contexts import CodeContext
from belljar.fleet.execution import Execution, Stdout
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from tests.conftest import CreateSandbox, said
from tests.fleet.test_recovery import kill_9, read_line, start_owner

DEADLINE_S = 120.0


async def ran(context: CodeContext | Sandbox, code: str, **options: object) -> Execution:
    """A cell that must succeed."""
    run = context.run_code if isinstance(context, Sandbox) else context.run
    execution = await run(code, timeout_s=DEADLINE_S, **options)  # type: ignore[arg-type]
    assert execution.error is None, f"{code}: {execution.error}"
    return execution


async def until_printed(context: CodeContext, code: str, **options: object) -> None:
    """Start a cell, wait for its first line, and leave it."""
    async with context.stream(code, **options) as cell:  # type: ignore[arg-type]
        async for event in cell:
            if isinstance(event, Stdout):
                return


def tiny_wheel() -> bytes:
    info = "tiny-1.0.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    held = {
        "tiny.py": "value = 7\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": wheel,
    }
    record = "".join(f"{name},,\n" for name in (*held, f"{info}/RECORD"))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, text in {**held, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return written.getvalue()


async def test_python_cells_mean_what_they_mean_in_a_notebook(sandbox: Sandbox) -> None:
    first = await ran(sandbox, "x = 40\nprint('hello')\nx + 2")
    assert (first.count, first.stdout, first.text) == (1, "hello\n", "42")
    assert first.main is not None and first.duration_s >= 0 and first.stderr == ""
    assert (await ran(sandbox, "x += 1\nx")).text == "41", "state did not last from cell to cell"
    assert (await ran(sandbox, "x;")).results == () and (await ran(sandbox, "None")).results == ()
    assert (await ran(sandbox, "_, Out[2]")).text == "(41, 41)"
    assert (await ran(sandbox, "import asyncio\nawait asyncio.sleep(0.01, 'awaited')")).text == "'awaited'"
    assert (await ran(sandbox, "async def f():\n    return 5\nawait f()")).text == "5"
    shell = await ran(sandbox, "!echo out; echo err >&2\nlines = !seq 3\nlines[:]")
    assert "out" in shell.stdout and "err" in shell.stdout + shell.stderr and shell.text == "['1', '2', '3']"
    assert "/tmp" in (await ran(sandbox, "%cd -q /tmp\n%pwd")).text  # type: ignore[operator]
    assert (await ran(sandbox, "%%bash\necho from bash")).stdout == "from bash\n"
    below = await ran(
        sandbox, "import os, subprocess\nos.write(1, b'raw\\n')\n_ = subprocess.run(['sh', '-c', 'echo child; echo bad >&2'])"
    )
    assert (below.stdout, below.stderr) == ("raw\nchild\n", "bad\n"), "what is written below Python was lost or reordered"
    await sandbox.files.write("/tmp/tiny-1.0-py3-none-any.whl", tiny_wheel())
    await ran(sandbox, "%pip install -q --no-index --disable-pip-version-check /tmp/tiny-1.0-py3-none-any.whl")
    assert (await ran(sandbox, "import tiny; tiny.value")).text == "7"
    failed = await sandbox.run_code("def g():\n    return 1 / 0\ng()")
    assert failed.error is not None
    assert (failed.error.kind, failed.error.name, failed.error.state_lost) == ("exception", "ZeroDivisionError", False)
    told = "\n".join(failed.error.traceback)
    assert "return 1 / 0" in told and "division by zero" in told and "\x1b" not in told and "g()" in told
    wrong = (await sandbox.run_code("for")).error
    assert wrong is not None and wrong.name == "SyntaxError"
    assert (await ran(sandbox, "x")).text == "41", "an error cost the state"
    long = "s = '" + "é" * 1_000_000 + "'\nlen(s)"
    assert (await ran(sandbox, long)).text == "1000000"


async def test_the_first_context_is_the_templates_and_others_are_warm_too(create: CreateSandbox) -> None:
    sandbox = await create("python-data")
    (known,) = await sandbox.contexts.list()
    assert (known.default, known.language, known.state, known.cells) == (True, "python", "idle", 0)
    first = await sandbox.contexts.create()
    assert first.id == known.id
    second = await sandbox.contexts.create("py", cwd="/tmp", env={"COLOUR": "green"})
    assert second.id != first.id and second.language == "python"
    look = "import sys, os\n[m for m in ('numpy', 'pandas', 'matplotlib.pyplot') if m in sys.modules], os.getppid()"
    libraries = [(await ran(context, look)).text for context in (first, second)]
    assert libraries[0] == libraries[1] and "'matplotlib.pyplot'" in libraries[0], "they do not come from one warm process"  # type: ignore[operator]
    assert (await ran(second, "os.getcwd(), os.environ['COLOUR']")).text == "('/tmp', 'green')"
    assert (await ran(first, "os.environ.get('COLOUR'), os.getcwd()")).text == "(None, '/workspace')"
    assert (await ran(first, "sorted({'np', 'pd', 'df', 'plt'} & set(dir()))")).text == "[]", "the warm-up left names behind"
    third = await sandbox.contexts.create(user="root")
    assert (await ran(third, "import os; os.getuid()")).text == "0"


# Each waits until all ten have come: only contexts that run side by side get past this.
MEET = """
import os, time
open(f"/tmp/here-{me}", "w").close()
while len([name for name in os.listdir("/tmp") if name.startswith("here-")]) < 10:
    time.sleep(0.05)
"""


async def test_ten_contexts_think_side_by_side_and_each_in_order(sandbox: Sandbox) -> None:
    contexts = [await sandbox.contexts.create() for _ in range(10)]
    assert len({context.id for context in contexts}) == 10
    await asyncio.gather(*(ran(context, f"me = {n}\n{MEET}") for n, context in enumerate(contexts)))
    assert [(await ran(context, "me")).text for context in contexts] == [str(n) for n in range(10)]
    order = await asyncio.gather(ran(contexts[0], "seen = []"), *(ran(contexts[0], f"seen.append({n})") for n in range(8)))
    assert [execution.count for execution in order] == list(range(3, 12))
    assert (await ran(contexts[0], "seen")).text == str(list(range(8)))
    assert len(await sandbox.contexts.list()) == 10
    await contexts[3].delete()
    assert contexts[3].id not in {info.id for info in await sandbox.contexts.list()}
    with pytest.raises(ContextNotFound):
        await contexts[3].run("1")
    assert (await ran(contexts[4], "me")).text == "4"


async def test_a_cell_says_what_it_changed_on_request(create: CreateSandbox) -> None:
    sandbox = await create("python-data")
    await ran(sandbox, "import numpy as np, pandas as pd\nkept, dropped = [1], 1")
    code = """
df = pd.DataFrame({"a": range(5), "b": range(5)})
arr = np.zeros((3, 4))
kept.append(2)
del dropped
class Slow:
    def __repr__(self):
        import time; time.sleep(600)
class Loud:
    def __repr__(self):
        raise RuntimeError("no")
slow, loud = Slow(), Loud()
open("made.txt", "w").write("four")
"""
    changes = (await ran(sandbox, code, changes=True)).changes
    assert changes is not None
    added = {variable.name: variable for variable in changes.added}
    assert {"df", "arr", "slow", "loud"} <= added.keys() and "dropped" in changes.removed
    assert "DataFrame" in added["df"].type and "5" in (added["df"].shape or "") and "2" in (added["df"].shape or "")
    assert "ndarray" in added["arr"].type and (added["arr"].size_bytes or 0) >= 96
    assert [variable.name for variable in changes.changed] == ["kept"]
    assert any(file.path.endswith("made.txt") and file.size == 4 for file in changes.files_added)
    assert (await ran(sandbox, "1")).changes is None
    after = (await ran(sandbox, "open('made.txt', 'a').write('!')", changes=True)).changes
    assert after is not None and any(file.path.endswith("made.txt") for file in after.files_changed)
    listed = {variable.name for variable in await (await sandbox.contexts.get("default")).variables()}
    assert {"df", "arr", "slow", "loud", "kept"} <= listed and not any(name.startswith("_") for name in listed)


async def test_output_beyond_the_budget_comes_as_head_and_tail_and_stays_whole_in_a_file(sandbox: Sandbox) -> None:
    code = "for n in range(100_000): print(f'{n:09}')"
    execution = await ran(sandbox, code, max_output=10_000)
    cut = execution.truncated.stdout
    assert cut is not None and cut.files and cut.complete
    lines = execution.stdout
    assert len(lines.encode()) + cut.omitted == 1_000_000, "the count of what was left out is wrong"
    assert lines.startswith("000000000\n000000001\n") and lines.endswith("000099999\n") and len(lines) <= 10_000
    whole = cut.files[0]
    assert await said(sandbox, f"wc -c < {whole}; head -1 {whole}; tail -1 {whole}") == "1000000\n000000000\n000099999"
    quiet = await ran(sandbox, "import sys\nprint('x' * 5000, file=sys.stderr)", max_output=100)
    assert quiet.truncated.stderr is not None and quiet.truncated.stderr.omitted + len(quiet.stderr) == 5001
    assert quiet.truncated.stdout is None
    big = await ran(
        sandbox, "from IPython.display import display, HTML\ndisplay(HTML('h' * 50_000))\ndisplay('small')", max_results=10_000
    )
    cut = big.truncated.results
    assert cut is not None and cut.omitted >= 50_000 and cut.files
    assert [result.html for result in big.results] == [None, None] and "'small'" in (big.results[1].text or "")
    assert "h" * 50_000 in await said(sandbox, f"cat {' '.join(cut.files)}")
    flood = await ran(sandbox, "import os\npiece = b'y' * (1 << 20)\nfor _ in range(200): os.write(1, piece)")
    assert flood.truncated.stdout is not None and flood.truncated.stdout.omitted + len(flood.stdout) == 200 << 20
    assert (await ran(sandbox, "6 * 7")).text == "42"


async def test_cells_can_be_left_joined_interrupted_and_their_context_restarted(sandbox: Sandbox) -> None:
    context = await sandbox.contexts.create()
    loop = "import time\nn = 0\nprint('up', flush=True)\nwhile n < {}:\n    n += 1\n    time.sleep(0.1)\nprint('end')"
    await ran(context, "kept = 'kept'")
    assert await context.interrupt() is False
    # Left, and to be interrupted.
    await until_printed(context, loop.format(6000))
    assert (await ran(context, "kept, n < 6000")).text == "('kept', True)"
    # Left, and to go on; then joined from its start.
    await until_printed(context, loop.format(20), on_disconnect="continue")
    joined = await context.attach().wait()
    assert (joined.stdout, joined.error) == ("up\nend\n", None)
    again = await context.attach(joined.id).wait()
    assert (again.stdout, again.id) == ("up\nend\n", joined.id)
    # Interrupted on request while another cell waits.
    running = asyncio.create_task(context.run(loop.format(6000), timeout_s=DEADLINE_S))
    waiting = asyncio.create_task(ran(context, "n"))
    while not (info := (await sandbox.contexts.list())[0]).queued or info.state != "busy":
        await asyncio.sleep(0.05)
    with pytest.raises(Conflict):
        await context.variables()
    assert await context.interrupt() is True
    error = (await running).error
    assert error is not None and (error.kind, error.state_lost) == ("interrupted", False)
    assert int((await waiting).text or 0) < 6000
    await context.restart()
    error = (await context.run("kept")).error
    assert error is not None and error.name == "NameError"
    assert (await ran(context, "1 + 1")).text == "2"


async def test_many_cells_leave_nothing_growing(sandbox: Sandbox) -> None:
    context = await sandbox.contexts.create()
    agent = "sudo grep VmRSS /proc/$(pgrep -P 1 -o -f belljar)/status"
    for _ in range(50):
        await context.run("[i for i in range(100)]; print('x' * 100)")
    before = int((await said(sandbox, agent)).split()[1])
    for _ in range(300):
        await context.run("[i for i in range(100)]; print('x' * 100)")
    grown = int((await said(sandbox, agent)).split()[1]) - before
    assert grown < 2048, f"the agent grew by {grown} KiB over 300 cells"
    assert (await ran(context, "1")).count == 351


async def test_bash_javascript_typescript_and_jupyter_kernels_keep_their_state(create: CreateSandbox) -> None:
    sandbox = await create("code-interpreter")
    assert {"python", "bash", "javascript", "typescript"} <= set(await sandbox.contexts.languages())
    await ran(sandbox, 'cd /tmp; x=5; f() { echo "f $1"; }', language="bash")
    bash = await ran(sandbox, "f $x; pwd; echo bad >&2", language="sh")
    assert (bash.stdout, bash.stderr) == ("f 5\n/tmp\n", "bad\n")
    failed = (await sandbox.run_code("echo before; false", "bash")).error
    assert failed is None or failed.kind == "exception"
    await ran(sandbox, "let a = 40; const f = async (n) => n + a; class P { v = 1 }", language="javascript")
    script = await ran(sandbox, "console.log('log'); console.error('bad'); await f(2)", language="js")
    assert (script.stdout, script.stderr, script.text) == ("log\n", "bad\n", "42")
    error = (await sandbox.run_code("null.x", "javascript")).error
    assert error is not None and (error.kind, error.name) == ("exception", "TypeError") and "null" in error.value
    await ran(sandbox, "interface Point { x: number }\nconst p: Point = { x: 41 }; let q: number = p.x + 1", language="typescript")
    assert (await ran(sandbox, "const r: number = q; r", language="ts")).text == "42"
    spec = {
        "argv": ["/opt/venv/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Mine",
        "language": "python",
    }
    await sandbox.files.write("/opt/venv/share/jupyter/kernels/mine/kernel.json", json.dumps(spec))
    assert "mine" in await sandbox.contexts.languages()
    kernel = await sandbox.contexts.create("mine")
    await ran(kernel, "y = 6")
    told = await ran(kernel, "import sys\nprint('seen'); print('bad', file=sys.stderr)\ny * 7")
    assert (told.stdout, told.stderr, told.text) == ("seen\n", "bad\n", "42")
    error = (await kernel.run("1/0")).error
    assert error is not None and error.name == "ZeroDivisionError" and "\x1b" not in "".join(error.traceback)
    stuck = (await kernel.run("import time\nwhile True: time.sleep(0.1)", timeout_s=2)).error
    assert stuck is not None and stuck.kind == "timeout" and not stuck.state_lost
    assert (await ran(kernel, "y")).text == "6"
    with pytest.raises(NotSupported, match="python"):
        await sandbox.run_code("1", "cobol")


# -- contexts live in the machine


TICKING = "import time\nmark = 'parent'\nfor n in range(60):\n    print(n, flush=True)\n    time.sleep(0.1)\nn"
DRAW = "import json, os\nprint(json.dumps([random.random(), np.random.rand(), str(uuid.uuid4()), os.urandom(4).hex()]))"


async def test_forked_contexts_have_the_parents_variables_and_think_alone(create: CreateSandbox) -> None:
    sandbox = await create("python-data")
    context = await sandbox.contexts.create()
    await ran(context, "import random, uuid, numpy as np\nlist_of_it = list(range(1000))\nrandom.random(); np.random.rand()")
    await until_printed(context, TICKING, on_disconnect="continue")
    children = await sandbox.fork(2)
    try:
        for machine in (sandbox, *children):
            execution = await (await machine.contexts.get(context.id)).attach().wait()
            assert execution.error is None and execution.text == "59"
            assert execution.stdout == "".join(f"{n}\n" for n in range(60)), "output of the running cell was lost in the fork"
        draws = []
        for machine in (sandbox, *children):
            assert (await ran(machine, "mark, sum(list_of_it)")).text == "('parent', 499500)"
            draws.append(json.loads((await ran(machine, DRAW)).stdout))
        for kind, values in zip(("random", "numpy.random", "uuid4", "urandom"), zip(*draws, strict=True), strict=True):
            assert len(set(values)) == 3, f"{kind} repeats across forks: {values}"
        await ran(children[0], "mark = 'child'")
        assert (await ran(children[1], "mark")).text == "'parent'"
        fresh = await children[0].contexts.create()
        other = await children[1].contexts.create()
        first = [(await ran(new, "import random; random.random()")).text for new in (fresh, other)]
        assert first[0] != first[1], "contexts made after a fork begin with the same random numbers"
    finally:
        for child in children:
            await child.kill()


BUSY_OWNER = f"""
    sandbox = await fleet.create()
    await sandbox.run_code("kept = [1, 2, 3]")
    cell = (await sandbox.contexts.get("default")).stream({TICKING!r})
    async for event in cell:
        if type(event).__name__ == "Stdout":
            break
    print(sandbox.id, flush=True)"""


async def test_contexts_survive_snapshot_sleep_and_the_death_of_their_owner(fleet: Fleet, settings: Settings) -> None:
    owner = start_owner(settings, BUSY_OWNER)
    sandbox_id = await read_line(owner)
    assert await read_line(owner) == "READY"
    kill_9(owner)
    sandbox = await fleet.get(sandbox_id)
    try:
        context = await sandbox.contexts.get("default")
        snapshot = await sandbox.snapshot()
        await sandbox.hibernate()
        await sandbox.wake()
        execution = await context.attach().wait()
        assert (execution.text, execution.error) == ("59", None), "the running cell did not survive"
        assert execution.stdout == "".join(f"{n}\n" for n in range(60))
        assert (await ran(sandbox, "kept")).text == "[1, 2, 3]"
        copy = await fleet.create(snapshot=snapshot.id)
        try:
            execution = await (await copy.contexts.get("default")).attach().wait()
            assert (execution.text, (await ran(copy, "kept")).text) == ("59", "[1, 2, 3]")
        finally:
            await copy.kill()
            await fleet.remove_snapshot(snapshot.id)
    finally:
        await sandbox.kill()


async def test_a_sandbox_of_the_pool_has_a_pristine_context(settings: Settings) -> None:
    pooled = await Fleet.open(dataclasses.replace(settings, pool_size=1), maintain=False)
    try:
        first = await pooled.create("base")
        await first.kill()
        while not any(pooled.starts.pool._ready.values()):
            await asyncio.sleep(0.1)
        sandbox = await pooled.create("base", env={"COLOUR": "green"})
        execution = await ran(sandbox, "import os\n[n for n in dir() if n[0] != '_'], os.environ['COLOUR'], os.uname().nodename")
        assert execution.count == 1 and "'green'" in (execution.text or "") and sandbox.id in (execution.text or "")
        assert (await ran(sandbox, "In[1][:9], len(In)")).text == "('import os', 3)", "the warm-up is in the history"
        await sandbox.kill()
    finally:
        await pooled.aclose()
