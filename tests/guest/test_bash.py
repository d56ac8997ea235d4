"""bash contexts: a real shell behind the real agent."""

from __future__ import annotations

import subprocess

import pytest

from tests.guest.cells import begin, collect, create, run
from tests.guest.conftest import Guest
from tests.guest.test_processes import wait_for


@pytest.fixture
async def bash(guest: Guest) -> str:
    return await create(guest, "sh")


async def test_bash_keeps_variables_functions_directory_and_options(guest: Guest, bash: str) -> None:
    (guest.home / "sub").mkdir()
    code = "x='a  b'; f() { echo \"<$1>\"; }; cd sub; set -f; declare -A m=([k]=v); alias hi='echo hi'"
    assert (await run(guest, bash, code)).error is None
    cell = await run(guest, bash, 'f "$x"; pwd; echo *; echo ${m[k]}\ncat <<END\nhere $x\nEND\nhi')
    assert cell.stdout.decode() == f"<a  b>\n{guest.home}/sub\n*\nv\nhere a  b\nhi\n"


async def test_bash_cell_fails_when_its_last_command_does(guest: Guest, bash: str) -> None:
    assert (await run(guest, bash, "false\ntrue")).error is None
    for code, value in {"(exit 7)": "exit status 7", "nosuchcommand": "exit status 127", "if then": "exit status 2"}.items():
        cell = await run(guest, bash, code)
        assert cell.error is not None and (cell.kind, cell.error["name"]) == ("exception", "CommandFailed")
        assert cell.error["value"] == value
    assert b"syntax error" in cell.stderr
    cell = await run(guest, bash, "set -u; echo $nothing; echo not reached")
    assert cell.kind == "exception" and cell.stdout == b"" and b"unbound" in cell.stderr


@pytest.mark.parametrize("code", ["sleep 600; echo no", "while :; do :; done; echo no", "f() { sleep 600; echo no; }; f; echo no"])
async def test_bash_interrupt_ends_the_whole_cell_and_keeps_the_shell(guest: Guest, bash: str, code: str) -> None:
    async with await begin(guest, bash, f"x=kept; echo up > up; {code}") as channel:
        await wait_for(guest.home / "up")
        await guest.ask("context.interrupt", id=bash)
        cell = await collect(channel)
    assert cell.kind == "interrupted" and b"no" not in cell.stdout
    assert (await run(guest, bash, "echo $x")).stdout == b"kept\n"


async def test_bash_exit_ends_the_shell_and_says_so(guest: Guest, bash: str) -> None:
    for code, status in {"x=1; exit 3": 3, "x=1; set -e; false": 1}.items():
        cell = await run(guest, bash, code)
        assert cell.error is not None and (cell.kind, cell.error["state_lost"]) == ("exit", True)
        assert f"status {status}" in cell.error["value"] and cell.stderr == b""
        assert (await run(guest, bash, "echo \"<$x>\" $-")).stdout.startswith(b"<>")
    cell = await run(guest, bash, "kill -9 $$")
    assert cell.error is not None and (cell.kind, cell.error["state_lost"]) == ("died", True)


async def test_bash_reads_the_stdin_it_is_given_or_none(guest: Guest, bash: str) -> None:
    assert (await run(guest, bash, "read a; cat; echo $a", stdin="one\ntwo\n")).stdout == b"two\none\n"
    cell = await run(guest, bash, "cat; read a; echo $?")
    assert cell.stdout == b"1\n"
    assert (await run(guest, bash, "exec </etc/passwd; read a; echo ok")).stdout == b"ok\n"
    assert (await run(guest, bash, "cat; echo still works")).stdout == b"still works\n"


async def test_bash_environment_changes_after_a_thaw_and_numbers_too(guest: Guest, bash: str) -> None:
    await run(guest, bash, "RANDOM=1; x=1")
    await guest.ask("thaw", env={"QUOTED": "it's \"$x\" `id`"})
    cell = await run(guest, bash, 'echo "$QUOTED"; echo $x $RANDOM $RANDOM')
    quoted, numbers = cell.stdout.decode().splitlines()
    seeded = subprocess.run(["bash", "-c", "RANDOM=1; echo $RANDOM $RANDOM"], capture_output=True, text=True, check=True).stdout
    assert quoted == "it's \"$x\" `id`" and numbers.startswith("1 ") and numbers != f"1 {seeded.strip()}"
