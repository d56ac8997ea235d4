"""After a restore: what the agent is told, and what it does with it."""

from __future__ import annotations

import base64
import json
import os

import pytest

from belljar.errors import InvalidInput
from tests.guest.conftest import Guest

ENTROPY = base64.b64encode(bytes(64)).decode()
MACHINE_ID = "0123456789abcdef" * 2


async def test_thaw_sets_randomness_before_the_clock_and_the_names(guest: Guest) -> None:
    assert await guest.ask("thaw", time_ns=123, entropy=ENTROPY, hostname="box-1", machine_id=MACHINE_ID) == {}
    assert json.loads((guest.etc / "done.json").read_text()) == [["entropy", 64], ["clock", 123], ["hostname", "box-1"]]
    assert (guest.etc / "hostname").read_text() == "box-1\n"
    assert (guest.etc / "machine-id").read_text() == f"{MACHINE_ID}\n"


async def test_shorter_hostname_leaves_nothing_of_the_longer_one(guest: Guest) -> None:
    await guest.ask("thaw", hostname="a-very-long-name")
    await guest.ask("thaw", hostname="short")
    assert (guest.etc / "hostname").read_text() == "short\n"


@pytest.mark.parametrize("broken", ["directory", "fifo", "link"])
async def test_broken_etc_does_not_fail_a_thaw(guest: Guest, broken: str) -> None:
    path = guest.etc / "machine-id"
    victim = guest.home / "victim"
    victim.write_text("untouched")
    if broken == "directory":
        path.mkdir()
    elif broken == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(victim)
    assert await guest.ask("thaw", machine_id=MACHINE_ID) == {}
    assert victim.read_text() == "untouched"


async def test_defaults_hold_for_later_processes_and_null_keeps_them(guest: Guest) -> None:
    (guest.home / "sub").mkdir()
    await guest.ask("thaw", env={"X": "1"}, cwd=str(guest.home / "sub"))
    await guest.ask("thaw", env=None, cwd=None, user=None)
    assert (await guest.run("echo $X; pwd")).stdout.decode().split() == ["1", str(guest.home / "sub")]


@pytest.mark.parametrize(
    "params",
    [
        {"time_ns": "now"},
        {"time_ns": -1},
        {"entropy": "!!!"},
        {"entropy": base64.b64encode(bytes(8)).decode()},
        {"hostname": "no spaces"},
        {"hostname": "x" * 65},
        {"hostname": "a\nb"},
        {"machine_id": "xyz"},
        {"user": "nobody-here"},
        {"env": {"": "x"}},
        {"grow_disk": "yes"},
    ],
)
async def test_bad_thaw_is_invalid_and_changes_nothing(guest: Guest, params: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        await guest.ask("thaw", **{"env": {"Y": "2"}, "time_ns": 5, **params})
    assert (await guest.run("echo $Y")).stdout == b"\n"
    assert not (guest.etc / "done.json").exists()
