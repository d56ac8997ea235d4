"""Errors as clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.exceptions import HTTPException

from belljar.errors import BY_CODE, DiskFull, HostError, InvalidInput, RateLimited, StartFailed
from belljar.server.answers import sse, with_pauses
from belljar.server.pandastack.dialect import render
from belljar.server.problems import WARM_UP_WORDS, problem_of, respond


@pytest.mark.parametrize("words", WARM_UP_WORDS)
def test_words_that_make_clients_wait_never_leave_in_a_server_error(words: str) -> None:
    problem = problem_of(HostError(f"dial: {words.upper()} and {words}"), "GET", "/")
    assert problem.status == 503 and words not in problem.message.lower() and "dial" in problem.message
    assert words in problem_of(InvalidInput(words), "GET", "/").message


def test_every_error_has_a_message_and_its_own_status() -> None:
    for code, kind in BY_CODE.items():
        problem = problem_of(kind(""), "GET", "/")
        assert (problem.code, problem.status) == (code, kind.status) and problem.message
    assert problem_of(ValueError("secret"), "GET", "/").status == 500
    assert "secret" not in problem_of(ValueError("secret"), "GET", "/").message
    assert problem_of(HTTPException(404), "GET", "/x").message == "there is no route GET /x"


def test_a_wait_is_never_shortened_to_almost_nothing() -> None:
    assert problem_of(RateLimited("", retry_after_s=7), "GET", "/").retry_after_s == 7
    assert problem_of(RateLimited("", retry_after_s=10**9), "GET", "/").retry_after_s == 3600
    assert problem_of(RateLimited(""), "GET", "/").retry_after_s == 1


def test_the_log_learns_what_is_wrong_with_the_host_and_not_what_callers_did() -> None:
    scope: dict[str, object] = {}
    respond(scope, problem_of(StartFailed("QEMU ended: out of memory"), "POST", "/"), render)
    assert scope == {"problem": "start_failed", "reason": "QEMU ended: out of memory"}
    scope.clear()
    respond(scope, problem_of(DiskFull("no space left for /home/user/private name"), "PUT", "/"), render)
    assert scope == {"problem": "disk_full"}


def test_the_servers_own_folder_is_not_told() -> None:
    problem = problem_of(HostError("no such file: '/srv/home/sandboxes/sb-1/disk'"), "GET", "/", "/srv/home")
    assert problem.message == "no such file: '$BELLJAR_HOME/sandboxes/sb-1/disk'"


async def test_pauses_are_told_and_the_source_is_closed() -> None:
    closed, go = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await go.wait()
            yield 2
            await asyncio.Event().wait()
        finally:
            closed.set()

    items = with_pauses(source(), 60, 0.01, asyncio.Event())
    assert await anext(items) == 1
    assert await anext(items) is None
    go.set()
    while (item := await anext(items)) is None:
        pass
    assert item == 2
    await items.aclose()
    assert closed.is_set()


def test_an_event_is_one_line_of_data_whatever_it_holds() -> None:
    assert sse("stdout", {"chunk": "a\r\nb\u2028\x85"}) == b'event: stdout\ndata: {"chunk": "a\\r\\nb\\u2028\\u0085"}\n\n'
    assert sse("event", {}, 7) == b"id: 7\nevent: event\ndata: {}\n\n"
