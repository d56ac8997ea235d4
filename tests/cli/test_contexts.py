"""code and contexts against a scripted guest: what is printed, saved and returned."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.cli import contexts as commands
from belljar.errors import InvalidInput
from belljar.fleet.contexts import Contexts
from belljar.vm.link import Link
from tests.cli.conftest import Command
from tests.fleet.scripted_guest import GuestChannel, ScriptedGuest, answers
from tests.fleet.test_code_contexts import INFO
from tests.fleet.test_execution import DONE, ERROR, STARTED

Captured = pytest.CaptureFixture[str]
PNG = b"\x89PNG"


@pytest.fixture
async def scripted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedGuest]:
    guest = ScriptedGuest()
    link = await guest.start()

    async def provide() -> Link:
        return link

    async def get(name: str) -> Any:
        return SimpleNamespace(contexts=Contexts(provide))

    @asynccontextmanager
    async def open_fleet() -> AsyncIterator[Any]:
        yield SimpleNamespace(get=get)

    monkeypatch.setattr(commands, "open_fleet", open_fleet)
    guest.script["context.list"] = answers({"contexts": [INFO]})
    guest.script["context.run"] = cell()
    yield guest
    await link.aclose()
    guest.stop()


def cell(error: dict[str, Any] | None = None, **done: Any) -> Any:
    """Prints, shows a picture, has a value, and perhaps fails."""

    async def play(channel: GuestChannel) -> None:
        channel.message(STARTED)
        await channel.data(b"out\n", 1)
        await channel.data(b"err\n", 2)
        for main, mime, data, kind in ((False, "image/png", PNG, "binary"), (True, "text/plain", b"42", "text")):
            part = {"mime": mime, "size": len(data), "kind": kind}
            channel.message({"output": {"main": main, "parts": [part], "metadata": {}, "display_id": None, "update": False}})
            await channel.data(data, 3)
        if error:
            channel.message({"error": {**ERROR, **error}})
        channel.message({"done": {**DONE, **done}})
        channel.end()

    return play


async def test_code_prints_what_the_cell_prints_and_shows(scripted: ScriptedGuest, belljar: Command, capsys: Captured) -> None:
    assert await belljar("code", "sb-1", "-c", "f()", "--timeout", "5") == 0
    assert tuple(capsys.readouterr()) == ("out\nimage/png\n42\n", "err\n")
    assert (scripted.requests[0]["id"], scripted.requests[0]["code"], scripted.requests[0]["timeout_s"]) == ("default", "f()", 5)


async def test_code_comes_from_a_file_or_stdin_and_the_name_tells_the_language(
    scripted: ScriptedGuest, belljar: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.sh").write_text("echo 1")
    scripted.script["context.list"] = answers({"contexts": [{**INFO, "language": "bash"}]})
    assert await belljar("code", "sb-1", str(tmp_path / "x.sh")) == 0
    monkeypatch.setattr(sys, "stdin", StringIO("1 + 1"))
    assert await belljar("code", "sb-1", "-", "--context", "c1") == 0
    cells = [(r["id"], r["code"]) for r in scripted.requests if r["op"] == "context.run"]
    assert cells == [("c1", "echo 1"), ("c1", "1 + 1")]


async def test_code_saves_pictures(scripted: ScriptedGuest, belljar: Command, tmp_path: Path, capsys: Captured) -> None:
    assert await belljar("code", "sb-1", "-c", "plot()", "--save", str(tmp_path)) == 0
    assert (tmp_path / "cell-3-1.png").read_bytes() == PNG
    assert "cell-3-1.png" in capsys.readouterr().err


async def test_a_cell_that_fails_is_explained(scripted: ScriptedGuest, belljar: Command, capsys: Captured) -> None:
    scripted.script["context.run"] = cell({"traceback": ["line 1", "E: v"]})
    assert await belljar("code", "sb-1", "-c", "1/0") == 1
    assert capsys.readouterr().err == "err\nline 1\nE: v\n"
    cut = {"stdout": {"omitted": 9, "files": ["/tmp/whole"], "complete": True}, "stderr": None, "results": None}
    scripted.script["context.run"] = cell({"kind": "timeout", "state_lost": True, "peak_memory_bytes": 1024}, truncated=cut)
    assert await belljar("code", "sb-1", "-c", "f()") == 124
    told = capsys.readouterr().err
    assert "timeout, 1.0 KiB" in told and "gone" in told and "9 bytes" in told and "/tmp/whole" in told


async def test_code_as_json_is_the_whole_execution(scripted: ScriptedGuest, belljar: Command, capsys: Captured) -> None:
    assert await belljar("code", "sb-1", "-c", "f()", "--json") == 0
    execution = json.loads(capsys.readouterr().out)
    assert (execution["stdout"], execution["count"], execution["error"]) == ("out\n", 3, None)
    assert [result["data"] for result in execution["results"]] == [{"image/png": "iVBORw=="}, {"text/plain": "42"}]


async def test_contexts_lists_them(scripted: ScriptedGuest, belljar: Command, capsys: Captured) -> None:
    assert await belljar("contexts", "sb-1") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["c1", "python", "idle"]
    assert await belljar("contexts", "sb-1", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "c1"


async def test_code_with_bad_arguments_sends_nothing(scripted: ScriptedGuest, belljar: Command, tmp_path: Path) -> None:
    odd = tmp_path / "odd.py"
    odd.write_bytes(b"\xff")
    for words in (
        [str(odd)],
        ["nosuch.py"],
        ["-c", "1", "--save", str(odd)],
        ["-c", "1", "--context", "c", "--language", "python"],
    ):
        with pytest.raises(InvalidInput):
            await belljar("code", "sb-1", *words)
    with pytest.raises(InvalidInput):
        await belljar("code", "sb-1", "-c", "1", "--timeout", "-1")
    assert scripted.requests == []
