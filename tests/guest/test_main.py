"""The agent as a whole: handshake, dispatch, bad requests."""

from __future__ import annotations

import pytest

from belljar.errors import InvalidInput
from tests.guest.conftest import Guest


async def test_hello_says_who_answers(guest: Guest) -> None:
    answer = await guest.ask("hello")
    assert answer["generation"] == 1
    assert answer["agent_start"] == 1
    assert len(answer["boot_id"]) == 36


async def test_unknown_operation_is_invalid_input(guest: Guest) -> None:
    with pytest.raises(InvalidInput, match=r"no\.such"):
        await guest.ask("no.such")


async def test_true_runs(guest: Guest) -> None:
    done = await guest.run("true")
    assert done.exited["exit_code"] == 0


async def test_a_file_written_is_read_back(guest: Guest) -> None:
    assert (await guest.write("a/b.txt", b"hello"))["bytes"] == 5
    assert await guest.read("a/b.txt") == b"hello"
