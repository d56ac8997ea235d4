"""Cells of a Python context: what they show, what they raise, and that the next one works."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.driver import Context


def error_of(context: Context, code: str, **more: Any) -> dict[str, Any]:
    error = context.run(code, **more).error
    assert error is not None
    assert not any("\x1b" in line or "belljar" in line for line in error["traceback"])
    return error


def test_state_is_kept_and_the_last_expression_is_the_result(context: Context) -> None:
    assert context.run("x = 20").outputs == []
    ran = context.run("print('said'); x + 22")
    assert (ran.text, ran.stdout, ran.done["count"]) == ("42", "said\n", 2)
    assert context.run("_ + 1, _i, Out").text == "(43, \"print('said'); x + 22\", {2: 42})"
    assert context.run("x;").outputs == []


def test_what_is_printed_comes_before_the_event_that_follows_it(context: Context) -> None:
    context.start("print('a', end=''); display(1)")
    event = context.receive()
    assert event["ev"] == "output" and context.printed["stdout"] == b"a"
    context.finish()


def test_display_updates_and_clears(context: Context) -> None:
    showing = "handle = display(HTML('<b>'), display_id='d'); handle.update(Markdown('*m*')); clear_output(wait=True)"
    ran = context.run(f"from IPython.display import *\n{showing}")
    first, second, clear, _ = ran.events
    assert (first["data"]["text/html"], first["display_id"], first["update"], first["main"]) == ("<b>", "d", False, False)
    assert (second["data"]["text/markdown"], second["display_id"], second["update"]) == ("*m*", "d", True)
    assert clear == {"ev": "clear", "wait": True, "n": 1}


@pytest.mark.parametrize(
    ("code", "mime", "value"),
    [
        ("Latex('$x$')", "text/latex", "$x$"),
        ("JSON({'a': [1, float('nan')]})", "application/json", {"a": [1, None]}),
        ("Javascript('go()')", "application/javascript", "go()"),
        ("type('P', (), {'_repr_pdf_': lambda self: b'%PDF'})()", "application/pdf", b"%PDF"),
        ("type('P', (), {'_repr_jpeg_': lambda self: b'\\xff\\xd8'})()", "image/jpeg", b"\xff\xd8"),
        ("type('P', (), {'_repr_png_': lambda self: b'\\x89PNG'})()", "image/png", b"\x89PNG"),
        ("type('P', (), {'_repr_svg_': lambda self: '<svg/>'})()", "image/svg+xml", "<svg/>"),
        ("type('P', (), {'_repr_mimebundle_': lambda self, **k: {'application/vnd.x': [1]}})()", "application/vnd.x", [1]),
    ],
)
def test_every_kind_of_result_arrives(context: Context, code: str, mime: str, value: Any) -> None:
    (output,) = context.run(f"from IPython.display import *\n{code}").outputs
    assert output["main"] and output["data"][mime] == value and "text/plain" in output["data"]


def test_an_object_that_displays_itself_is_the_main_result(context: Context) -> None:
    (output,) = context.run("type('D', (), {'_ipython_display_': lambda self: display('me')})()").outputs
    assert output["main"] and output["data"]["text/plain"] == "'me'"


def test_a_traceback_starts_at_the_users_code(context: Context) -> None:
    error = error_of(context, "def f():\n    return 1/0\nf()")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert error["traceback"][2] == "Cell In[1], line 3" and "Cell In[1], line 2, in f()" in error["traceback"]


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("x = = 1", "SyntaxError", "invalid syntax (line 1)"),
        ("return 1", "SyntaxError", "'return' outside function (line 1)"),
        ("if 1:\n  x = 1\n y = 2", "IndentationError", "unindent does not match any outer indentation level (line 3)"),
        ("%no_such_magic", "UsageError", "Line magic function `%no_such_magic` not found."),
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("exit('bye')", "SystemExit", "bye"),
        ("quit", "SystemExit", "0"),
        ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup", "g (1 sub-exception)"),
        ("class A:\n  def __repr__(self): raise KeyError('k')\nA()", "KeyError", "'k'"),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E", "<E whose text cannot be made>"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("def f(): f()\nf()", "RecursionError", "maximum recursion depth exceeded"),
    ],
)
def test_every_failure_has_a_name_and_the_next_cell_works(context: Context, code: str, name: str, value: str) -> None:
    error = error_of(context, code)
    assert (error["name"], error["value"]) == (name, value)
    assert context.run("1 + 1").text == "2"


def test_a_full_disk_is_told_apart(context: Context) -> None:
    assert error_of(context, "open('/dev/full', 'w').write('x' * 100000)")["errno"] == 28


def test_a_huge_error_is_cut(context: Context) -> None:
    error = error_of(context, "raise ValueError('é' * 3_000_000)")
    assert len(error["value"]) < 20_000 and "characters left out" in error["value"]
    assert sum(map(len, error["traceback"])) < 70_000


def test_input_without_stdin_fails_at_once(context: Context) -> None:
    for code in ("input('name? ')", "import getpass; getpass.getpass()", "import sys; sys.stdin.read()"):
        error = error_of(context, code)
        assert error["name"] == "StdinNotGiven" and "pass stdin=" in error["value"]


def test_input_reads_the_stdin_that_was_given(context: Context) -> None:
    code = "import getpass, sys; input(), getpass.getpass(), sys.stdin.read()"
    assert context.run(code, stdin="ann\nsecret\nrest\né").text == "('ann', 'secret', 'rest\\né')"
    assert error_of(context, "input()", stdin="")["name"] == "EOFError"


def test_shell_commands_write_to_the_context(context: Context) -> None:
    ran = context.run("who = 'me'\nprint('first', end=' ')\n!echo $who; echo err >&2; exit 3\n_exit_code")
    assert (ran.stdout, ran.stderr, ran.text) == ("first me\n", "err\n", "3")
    assert context.run("found = !echo a b\nfound").text == "['a b']"
    assert context.run("%%bash\necho one").stdout == "one\n"


def test_top_level_await_and_tasks_that_outlive_their_cell(context: Context) -> None:
    work = "async def work():\n    await asyncio.sleep(0.05)\n    print('worked')\n"
    context.run(f"import asyncio\n{work}task = asyncio.create_task(work())")
    context.wait_printed(b"worked")
    assert context.run("await asyncio.sleep(0, 'slept')").text == "'slept'"
    assert context.run("asyncio.run(asyncio.sleep(0, 'ran'))").text == "'ran'"
    assert context.run("await asyncio.sleep(0, 'again')").text == "'again'"


def test_code_too_long_for_json_comes_as_a_blob(context: Context) -> None:
    code = f"x = {'é' * 2_000_000!r}\nlen(x)"
    assert context.run(None, code.encode()).text == "2000000"


def test_a_warm_cell_leaves_no_trace_in_the_history(context: Context) -> None:
    ran = context.run("y = 1; y + 1", count=False)
    assert ran.text == "2" and ran.done["count"] is None
    assert context.run("y, Out, In").text == "(1, {}, ['', 'y, Out, In'])"


def test_streams_survive_being_closed_and_odd_text(context: Context) -> None:
    context.run("import sys; sys.stdout.close(); sys.stderr.close()")
    ran = context.run("import sys; print('\\ud800é'); print('e', file=sys.stderr)")
    assert (ran.stdout, ran.stderr) == ("\\ud800é\n", "e\n")


def test_a_process_that_a_cell_forks_does_not_answer_for_the_kernel(context: Context) -> None:
    ran = context.run("import os\npid = os.fork()\nif pid: _ = os.waitpid(pid, 0)\ndisplay(pid > 0)")
    assert [output["data"]["text/plain"] for output in ran.outputs] == ["True"]
    assert context.run("'one'").text == "'one'"


def test_an_output_too_long_to_send_becomes_a_note(context: Context) -> None:
    assert "text/plain left out: its" in context.run("'x' * (65 << 20)").text
    assert context.run("1").text == "1"


def test_many_cells_leave_nothing_behind_but_their_results(context: Context) -> None:
    memory = "import resource; resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
    for _ in range(50):
        context.run("print('x' * 10_000); 1")
    before = int(context.run(memory).text)
    for _ in range(500):
        context.run("print('x' * 10_000); 1")
    assert int(context.run(memory).text) - before < 4096  # KiB; what is printed alone is 5000


def test_variables_are_listed_when_asked(context: Context) -> None:
    context.run("import json\nx = [1, 2]\n_private = 1\ndef f(): pass")
    context.send(do="variables")
    variables = context.receive()["variables"]
    assert [variable["name"] for variable in variables] == ["f", "x"]
    assert variables[1] | {"size_bytes": 0} == {"name": "x", "type": "list", "shape": "(2,)", "size_bytes": 0, "preview": "[1, 2]"}


def test_changes_name_variables_and_files(context: Context) -> None:
    context.run("a = 1; b = [1]; c = 3")
    changes = context.run("b.append(2); d = 4; del c; _ = open('new', 'w').write('xy')", changes=True).done["changes"]
    named = {kind: [item if kind == "removed" else item["name"] for item in items] for kind, items in changes["variables"].items()}
    assert named == {"added": ["d"], "changed": ["b"], "removed": ["c"]}
    (added,) = changes["files"]["added"]
    assert added["path"].endswith("/new") and added["size"] == 2 and changes["files"]["complete"]
