"""Work whose caller is cancelled: it ends before the caller leaves, and what it made is given back."""

from __future__ import annotations

import asyncio

import pytest

from belljar.vm.finishing import finish, in_thread
from tests.calling_off import Gate


class Slow(Gate):
    """Work in a thread that goes on until it is let."""

    def __init__(self, outcome: object) -> None:
        super().__init__()
        self.ended = False
        self._outcome = outcome

    def __call__(self) -> object:
        self.wait()
        self.ended = True
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


async def test_results_and_failures_come_through() -> None:
    assert await in_thread(lambda left, right: left + right, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_cancelled_caller_leaves_when_the_work_has_ended_and_undoes_it() -> None:
    work, undone = Slow("made"), []
    caller = asyncio.create_task(in_thread(work, undo=undone.append))
    await work.until_began()
    for _ in range(3):  # however often it is told to
        caller.cancel()
        await asyncio.sleep(0.01)
    assert not caller.done(), "the caller left while its thread was at work"
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended and undone == ["made"]


async def test_work_that_fails_after_its_caller_was_cancelled_is_not_undone() -> None:
    work, undone = Slow(OSError("no")), []
    caller = asyncio.create_task(in_thread(work, undo=undone.append))
    await work.until_began()
    caller.cancel()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert undone == []


async def test_a_deadline_around_it_is_still_a_timeout() -> None:
    steps = []

    async def move() -> None:
        await asyncio.sleep(0.1)
        steps.append("whole")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await finish(move())
    assert steps == ["whole"]
