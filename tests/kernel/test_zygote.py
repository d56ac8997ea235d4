"""Forks of a warm process: what they share, what they must not, and how their end is told."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

from tests.kernel.driver import Context, Zygote


def start(zygote: Zygote, cwd: Path, name: str) -> Context:
    made = zygote.fork(cwd, name)
    made.send(do="env", set={"LATER": "1"}, cwd=None)
    assert made.receive() == {"ev": "ready", "language": "python", "version": platform.python_version()}
    return made


def end(zygote: Zygote, *contexts: Context) -> None:
    for context in contexts:
        context.close()
        assert zygote.receive("exited")["status"] == 0


def test_what_could_not_be_imported_is_reported(zygote: Zygote) -> None:
    assert zygote.warm == {"ev": "warm", "version": platform.python_version(), "failed": ["no_such_module"]}


def test_a_context_has_its_directory_environment_and_group(zygote: Zygote, tmp_path: Path) -> None:
    one = start(zygote, tmp_path, "one")
    ran = one.run("import os, sys; os.getcwd(), os.environ['MADE_FOR'], os.environ['LATER'], os.getpgrp() == os.getpid(), sys.argv")
    assert eval(ran.text) == (str(tmp_path), "one", "1", True, [""])
    end(zygote, one)


def test_contexts_share_nothing_but_what_was_warm(zygote: Zygote, tmp_path: Path) -> None:
    one, two = start(zygote, tmp_path, "one"), start(zygote, tmp_path, "two")
    one.run("x = 1")
    assert two.run("x").error["name"] == "NameError"  # type: ignore[index]
    assert two.run("import sys; 'numpy' in sys.modules").text == "True"
    end(zygote, one, two)


def test_contexts_do_not_draw_the_same_numbers(zygote: Zygote, tmp_path: Path) -> None:
    code = "import random, uuid, numpy; random.random(), numpy.random.rand(), uuid.uuid4(), uuid.uuid1().node"
    one, two = start(zygote, tmp_path, "one"), start(zygote, tmp_path, "two")
    drawn = [eval(context.run(code).text.replace("UUID", "str")) for context in (one, two)]
    assert not set(drawn[0][:3]) & set(drawn[1][:3])
    end(zygote, one, two)


def test_a_new_namespace_is_clean(context: Context) -> None:
    names = context.run("sorted(name for name in globals() if not name.startswith('_'))").text
    assert names == repr(["In", "Out", "exit", "get_ipython", "open", "quit"])
    assert (
        context.run("__name__, __spec__, len(Out), str(_dh[0]) == __import__('os').getcwd()").text == "('__main__', None, 1, True)"
    )
    assert context.run("import sys; sys.path[0], sys.path[-1].endswith('kernel')").text == "('', False)"


def test_a_reseed_keeps_what_the_user_has_seeded(context: Context) -> None:
    context.run("import random, numpy; random.seed(1); first = random.random(); random.seed(1); state = numpy.random.get_state()")
    os.kill(context.pid, signal.SIGUSR1)
    same = context.run("random.random() == first, (numpy.random.get_state()[1] == state[1]).all()").text
    assert same == "(True, np.False_)"
    context.run("numpy.random.seed(1); state = numpy.random.get_state()")
    os.kill(context.pid, signal.SIGUSR1)
    assert context.run("bool((numpy.random.get_state()[1] == state[1]).all())").text == "True"


def test_a_reseed_in_the_middle_of_a_cell_does_not_disturb_it(context: Context) -> None:
    context.start("import random, time; state = random.getstate(); print('here'); time.sleep(0.5); random.getstate() == state")
    context.wait_printed(b"here")
    os.kill(context.pid, signal.SIGUSR1)
    assert context.finish().text == "False"


def test_how_a_context_died_is_told(zygote: Zygote, tmp_path: Path) -> None:
    for code, status in (("import os; os._exit(3)", 3 << 8), ("import os; os.kill(os.getpid(), 11)", 11)):
        one = start(zygote, tmp_path, "one")
        one.start(code)
        exited = zygote.receive("exited")
        assert (exited["id"], exited["pid"], os.waitstatus_to_exitcode(status)) == (
            "one",
            one.pid,
            os.waitstatus_to_exitcode(exited["status"]),
        )
        one.close()


def test_nothing_runs_before_the_first_message(zygote: Zygote, tmp_path: Path) -> None:
    one = zygote.fork(tmp_path)
    one.close()
    assert zygote.receive("exited")["status"] == 0
