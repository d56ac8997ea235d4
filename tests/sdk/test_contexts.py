"""Cells through the SDK: state, results, events, limits; and `run`, which the template decides."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import belljar
from belljar import AsyncSandbox, Client, Sandbox, errors
from belljar.sdk.cells import Done, Output, Started, Stdout
from belljar.wire.languages import ALIASES
from tests.server.conftest import eventually


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Sandbox]:
    with client.sandboxes.create("python-data") as made:
        yield made


def test_run_is_code_where_the_template_says_so(data: Sandbox, box: Sandbox) -> None:
    """The example of the documentation that this surface comes from."""
    done = data.run("import pandas; df = pandas.read_csv('/data.csv'); print(df.head())")
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 6
    children = []
    for approach in ("dropna", "interpolate"):
        child = data.fork()
        children.append(child)
        told = child.run(f"df_{approach} = df.{approach}(); print(df_{approach}.shape)", timeout=120)
        assert told.stdout.startswith("("), told.stderr
    for child in children:
        child.close()
    assert box.run("echo $((6 * 7))").stdout == "42\n"
    with pytest.raises(belljar.SandboxTimeout):
        data.run("while True: pass", timeout=1)


def test_a_repl_shows_pictures_as_bytes(data: Sandbox) -> None:
    repl = data.repl("python")
    shown = repl.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('drawn')")
    pictures = [item for item in shown.display if item.mime == "image/png"]
    assert shown.stdout == "drawn\n" and pictures[0].data.startswith(b"\x89PNG")
    assert repl.execute("pandas.DataFrame({'a': [1]})").display[0].mime == "text/html"


def test_events_come_as_they_happen(box: Sandbox) -> None:
    with box.create_code_context() as context, context.stream("print('a')\n6 * 7") as cell:
        events = list(cell)
        assert isinstance(events[0], Started) and isinstance(events[-1], Done)
        assert [event.text for event in events if isinstance(event, Stdout)] == ["a\n"]
        assert [event.result.text for event in events if isinstance(event, Output)] == ["42"]
        assert cell.execution.text == "42"


def test_callbacks_get_their_kind(box: Sandbox) -> None:
    told: list[object] = []
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay('shown')\n1 / 0"
    done = box.contexts.run(
        code,
        on_stdout=told.append,
        on_stderr=told.append,
        on_result=lambda r: told.append(r.text),
        on_error=lambda e: told.append(e.name),
    )
    assert {"out\n", "err\n", "'shown'", "ZeroDivisionError"} <= set(told)
    assert done.error is not None and done.error.kind == "exception"


def test_a_time_limit_is_data_and_keeps_the_state(box: Sandbox) -> None:
    with box.create_code_context() as context:
        context.run("kept = 1")
        done = context.run("while True: pass", timeout_seconds=1)
        assert done.error is not None and done.error.kind == "timeout" and not done.error.state_lost
        assert context.run("kept").text == "1"


def test_interrupt_restart_variables_and_stdin(box: Sandbox) -> None:
    with box.create_code_context(language="py") as context:
        assert context.interrupt() is False
        begun = threading.Event()
        stopper = threading.Thread(target=lambda: begun.wait(60) and context.interrupt())
        stopper.start()
        done = context.run("print('on', flush=True)\nwhile True: pass", on_stdout=lambda text: begun.set())
        stopper.join()
        assert done.error is not None and done.error.kind == "interrupted"
        asked = context.run("name = input('who? ')\nname", stdin="Ada\n", changes=True)
        assert asked.text == "'Ada'" and asked.changes is not None and [v["name"] for v in asked.changes["added"]] == ["name"]
        assert [(v.name, v.type) for v in context.variables()] == [("name", "str")]
        context.restart()
        assert context.variables() == [] and context.info().language == "python"
    with pytest.raises(errors.ContextNotFound):
        context.run("1")


def test_a_cell_can_be_left_alone_and_followed_again(box: Sandbox) -> None:
    with box.create_code_context() as context:
        code = "import time\nfor n in range(20):\n    print(n, flush=True)\n    time.sleep(0.1)\n'over'"
        with context.stream(code, on_disconnect="continue") as cell:
            for event in cell:
                if isinstance(event, Stdout):
                    break
        followed = context.attach().wait()
        assert followed.text == "'over'" and followed.stdout.split() == [str(n) for n in range(20)]


def test_leaving_a_cell_interrupts_it(box: Sandbox) -> None:
    with box.create_code_context() as context:
        with context.stream("print('on', flush=True)\nimport time\ntime.sleep(600)") as cell:
            while not isinstance(next(cell), Stdout):
                pass
        eventually(lambda: context.info().state == "idle", "the end of the cell")


def test_long_output_is_cut_and_kept_in_the_sandbox(box: Sandbox) -> None:
    done = box.contexts.run("print('x' * 100_000)", max_output=1000)
    assert len(done.stdout) < 5000 and done.truncated is not None
    (file,) = done.truncated["stdout"]["files"]
    assert box.filesystem.stat(file).size == 100_001


def test_every_name_of_a_language_means_the_same_context(box: Sandbox) -> None:
    there = box.contexts.languages()
    for name, language in {**ALIASES, "Python": "python", "BASH": "bash"}.items():
        if language not in there:
            with pytest.raises(errors.NotSupported, match=f"cannot run '{name}'"):
                box.contexts.create(name)
            continue
        word = f"a_{name.lower()}_b"
        box.contexts.run(f"{word}=5", language)
        again = box.contexts.run(f"{word}" if language == "python" else f"echo ${word}", name)
        assert (again.text or again.stdout.strip()) == "5", f"{name} is not {language}: {again}"


def test_other_languages(box: Sandbox) -> None:
    assert "bash" in box.contexts.languages()
    box.contexts.run("word=kept", "shell")
    assert box.contexts.run("echo $word", "bash").stdout == "kept\n"
    made = box.contexts.create("bash", cwd="/tmp", env={"A": "1"}, user="root")
    assert made.run("pwd; echo $A; id -un").stdout == "/tmp\n1\nroot\n"
    assert made.id in [found.id for found in box.contexts.list()] and box.contexts.get(made.id).language == "bash"
    made.delete()
    with pytest.raises(errors.NotSupported, match="cobol"):
        box.contexts.create("cobol")


async def test_cells_awaited(abox: AsyncSandbox) -> None:
    async with await abox.create_code_context() as context:
        texts: list[str] = []

        async def keep(text: str) -> None:
            texts.append(text)

        assert (await context.run("print('a')\n7", on_stdout=keep)).text == "7" and texts == ["a\n"]
        async with context.stream("print('b')") as cell:
            assert [event.text async for event in cell if isinstance(event, Stdout)] == ["b\n"]
        assert (await context.run_code("8")).text == "8"
        with pytest.raises(belljar.SandboxTimeout):
            await context.run_code("while True: pass", timeout_seconds=1)
    assert (await (await abox.repl()).execute("print('c')")).stdout == "c\n"
