"""Contexts against a scripted guest: what is refused before it is sent, what is sent, and what becomes of bad endings."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from belljar.errors import AgentProtocol, Conflict, ContextNotFound, DeadlineExceeded, InvalidInput, NotSupported
from belljar.fleet import cell as cell_module
from belljar.fleet.contexts import CodeContext, Contexts
from belljar.fleet.execution import Done, Started, Stdout
from belljar.fleet.process import LinkProvider
from tests.fleet.scripted_guest import GuestChannel, Script, ScriptedGuest, answers
from tests.fleet.test_execution import DONE, ERROR, STARTED, VARIABLE

INFO = {"id": "c1", "language": "python", "created_at": 1.0, "state": "idle", "cells": 0, "queued": 0, "default": False, "pid": 7}


@pytest.fixture
def context(links: LinkProvider) -> CodeContext:
    return CodeContext(links, "c1", "python")


def cell(stdout: bytes = b"", *, end: bool = True) -> Script:
    async def play(channel: GuestChannel) -> None:
        channel.message(STARTED)
        await channel.data(stdout, 1)
        if end:
            channel.message({"done": DONE})
            channel.end()
        else:
            await channel.was_reset.wait()

    return play


# -- refused before anything is sent


@pytest.mark.parametrize("code", [None, 7, b"1", "\ud800", "x" * (4 * 1024 * 1024 + 1)], ids=repr)
async def test_malformed_code_is_refused_unsent(context: CodeContext, guest: ScriptedGuest, code: Any) -> None:
    with pytest.raises(InvalidInput):
        await context.run(code)
    assert guest.requests == []


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": math.nan},
        {"timeout_s": math.inf},
        {"timeout_s": True},
        {"timeout_s": "5"},
        {"stdin": b"x"},
        {"stdin": "x" * 70_000},
        {"changes": "yes"},
        {"on_disconnect": "maybe"},
        {"max_output": -1},
        {"max_output": 2**40},
        {"max_results": 1.5},
    ],
)
async def test_malformed_options_are_refused_unsent(context: CodeContext, guest: ScriptedGuest, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await context.run("1", **options)
    assert guest.requests == []


async def test_malformed_wishes_for_a_context_are_refused_unsent(contexts: Contexts, guest: ScriptedGuest) -> None:
    for language in ("", "a\0b", "x" * 500, None, 3):
        with pytest.raises(InvalidInput):
            await contexts.create(language)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await contexts.run("1", language)  # type: ignore[arg-type]
    for wishes in ({"cwd": ""}, {"env": {"A=": "1"}}, {"user": "a\0"}, {"env": {str(n): "x" * 1000 for n in range(200)}}):
        with pytest.raises(InvalidInput):
            await contexts.create(**wishes)  # type: ignore[arg-type]
    for odd in ("", "a\0", "x" * 1000):
        with pytest.raises(InvalidInput):
            await contexts.get(odd)
    with pytest.raises(InvalidInput):
        CodeContext(contexts._links, "c1", "python").attach("\0")
    assert guest.requests == []


# -- what is sent, and what comes back


async def test_a_cell_travels_with_its_options(context: CodeContext, guest: ScriptedGuest) -> None:
    guest.script["context.run"] = cell(b"hi")
    seen: list[str] = []
    options: dict[str, Any] = {"timeout_s": 5, "stdin": "in", "changes": True, "on_disconnect": "continue", "max_output": 10}
    execution = await context.run("print('hi')", **options, on_stdout=seen.append)
    assert (execution.stdout, seen) == ("hi", ["hi"])
    assert guest.requests == [
        {"op": "context.run", "id": "c1", "code": "print('hi')", **options, "timeout_s": 5.0, "max_results": 8 << 20}
    ]


async def test_long_code_travels_behind_its_request(context: CodeContext, guest: ScriptedGuest) -> None:
    async def play(channel: GuestChannel) -> None:
        await channel.ended.wait()
        channel.message(STARTED)
        channel.message({"done": DONE})
        channel.end()

    guest.script["context.run"] = play
    code = "# ü" + "x" * 3_000_000
    await context.run(code)
    assert "code" not in guest.requests[0] and guest.channels[1].received == code.encode()


async def test_events_come_as_they_happen(context: CodeContext, guest: ScriptedGuest) -> None:
    go_on = asyncio.Event()

    async def play(channel: GuestChannel) -> None:
        channel.message(STARTED)
        await channel.data(b"1", 1)
        await go_on.wait()
        channel.message({"done": DONE})
        channel.end()

    guest.script["context.run"] = play
    seen = []
    async for event in context.stream("slow()"):
        seen.append(event)
        if isinstance(event, Stdout):
            go_on.set()
    assert [type(event) for event in seen] == [Started, Stdout, Done]
    guest.script["context.attach"] = play
    assert (await context.attach("e1").wait()).stdout == "1"
    assert guest.requests[1] == {"op": "context.attach", "id": "c1", "execution": "e1"}


async def test_leaving_a_cell_resets_its_channel(context: CodeContext, guest: ScriptedGuest) -> None:
    guest.script["context.run"] = cell(b"x", end=False)
    async with context.stream("forever()") as stream:
        assert isinstance(await anext(stream), Started)
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)
    with pytest.raises(Conflict):
        await anext(stream)

    def fail(text: str) -> None:
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="own"):
        await context.run("forever()", on_stdout=fail)
    await asyncio.wait_for(guest.channels[2].was_reset.wait(), 30)


async def test_the_first_context_of_a_language_is_found_or_made(contexts: Contexts, guest: ScriptedGuest) -> None:
    async def run(channel: GuestChannel) -> None:
        if channel.request["id"] == "default":
            channel.reset("context_not_found", "no such context")
        else:
            await cell()(channel)

    guest.script["context.run"] = run
    guest.script["context.list"] = answers({"contexts": [{**INFO, "language": "bash"}]})
    guest.script["context.create"] = answers({"id": "c2", "language": "python", "created_at": 1.0, "default": False})
    await contexts.run("1")
    await contexts.run("2", "py")
    await contexts.run("3", "sh")
    await contexts.run("4", "Bash")
    asked = [(request["op"], request.get("id")) for request in guest.requests]
    run_in = ["default", None, None, "c2", "c2", None, "c1", "c1"]
    assert [name for _, name in asked] == run_in and asked[2][0] == "context.create"
    assert guest.requests[2]["language"] == "python"


async def test_contexts_are_listed_and_asked(contexts: Contexts, guest: ScriptedGuest) -> None:
    guest.script["context.list"] = answers({"contexts": [INFO, {**INFO, "id": "c2", "pid": None}]})
    guest.script["context.languages"] = answers({"languages": ["python", "bash"]})
    guest.script["context.interrupt"] = answers({"interrupted": True})
    guest.script["context.variables"] = answers({"variables": [VARIABLE]})
    guest.script["context.restart"] = guest.script["context.delete"] = answers({})
    context = await contexts.get("c2")
    assert [info.id for info in await contexts.list()] == ["c1", "c2"]
    assert await contexts.languages() == ["python", "bash"]
    assert await context.interrupt() is True
    assert [variable.name for variable in await context.variables()] == ["x"]
    await context.restart()
    await context.delete()
    assert guest.requests[-1] == {"op": "context.delete", "id": "c2"}
    with pytest.raises(ContextNotFound, match="c3"):
        await contexts.get("c3")


async def test_an_unknown_language_is_a_typed_error(contexts: Contexts, guest: ScriptedGuest) -> None:
    async def refuse(channel: GuestChannel) -> None:
        channel.reset("not_supported", "no cobol here; python, bash")

    guest.script.update({"context.list": answers({"contexts": []}), "context.create": refuse})
    with pytest.raises(NotSupported, match="bash"):
        await contexts.run("1", "cobol")


# -- bad endings


@pytest.mark.parametrize(
    "script",
    [
        answers(),
        answers(STARTED),
        answers({"done": DONE}),
        answers(STARTED, {"done": DONE}, {"done": DONE}),
        answers(STARTED, {"error": ERROR}),
        answers(STARTED, {"nonsense": 1}),
    ],
)
async def test_a_cell_that_ends_as_none_does_is_the_guests_fault(
    context: CodeContext, guest: ScriptedGuest, script: Script
) -> None:
    guest.script["context.run"] = script
    with pytest.raises(AgentProtocol):
        await context.run("1")


async def test_a_guest_that_forgets_the_timeout_is_not_waited_for(
    context: CodeContext, guest: ScriptedGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_module, "TIMEOUT_GRACE_S", 0.1)
    guest.script["context.run"] = cell(end=False)
    with pytest.raises(DeadlineExceeded):
        await context.run("1", timeout_s=0.1)
    await asyncio.wait_for(guest.channels[1].was_reset.wait(), 30)


@pytest.mark.parametrize(
    "wrong", [{"state": "odd"}, {"cells": -1}, {"id": None}, {"default": 1}, {"pid": -1}, {"created_at": None}]
)
async def test_a_list_that_no_agent_sends_is_refused(contexts: Contexts, guest: ScriptedGuest, wrong: dict[str, Any]) -> None:
    guest.script["context.list"] = answers({"contexts": [{**INFO, **wrong}]})
    with pytest.raises(AgentProtocol):
        await contexts.list()
