"""Commands about whole sandboxes and snapshots: what they ask of the fleet, and how the answers look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cli.opening import parse_pairs
from belljar.cli.render import flatten, one_line, render_age, render_bytes, render_json, render_table
from belljar.egress.policy import parse_policy
from belljar.errors import InvalidInput, SandboxNotFound
from tests.cli.conftest import Command, StubFleet


async def test_create_passes_every_wish_on(stub_fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--vcpus", "1", "--memory", "512", "--disk", "1024")
    words = ("--template", "python-data", "--ttl", "60", *shape, "-e", "A=1", "-e", "B=x=y", "--metadata", "team=a")
    assert await belljar("create", *words) == 0
    assert capsys.readouterr().out == "sb-1\n"
    wishes = {"snapshot": None, "env": {"A": "1", "B": "x=y"}, "metadata": {"team": "a"}, "ttl_s": 60.0, "egress": None}
    assert stub_fleet.log == [("create", "python-data", {**wishes, "vcpus": 1, "memory_mib": 512, "disk_mib": 1024})]
    await belljar("create", "--snapshot", "snap-1", "--json")
    assert json.loads(capsys.readouterr().out)["id"] == "sb-1"
    assert stub_fleet.log[1][2]["snapshot"] == "snap-1"


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        (["--egress", "off"], {"mode": "off", "allow": [], "deny": []}),
        (["--egress", "open", "--deny", "a.test"], {"mode": "open", "allow": [], "deny": ["a.test"]}),
        (["--egress", "a.test, b.test:443"], {"mode": "allow-list", "allow": ["a.test", "b.test:443"], "deny": []}),
        (["--allow", "a.test", "--allow", "*.b.test"], {"mode": "allow-list", "allow": ["a.test", "*.b.test"], "deny": []}),
        (["--deny", "a.test"], {"mode": "open", "allow": [], "deny": ["a.test"]}),
    ],
)
async def test_create_with_a_policy(stub_fleet: StubFleet, belljar: Command, words: list[str], policy: dict[str, object]) -> None:
    await belljar("create", *words)
    assert stub_fleet.log[0][2]["egress"] == policy
    parse_policy(policy)


async def test_no_secret_is_shown(stub_fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]) -> None:
    await belljar("ps", "--json")
    assert not {"egress_secrets", "egress_authority"} & json.loads(capsys.readouterr().out)[0].keys()


async def test_ps_lists_and_disarms_what_guests_could_print(
    stub_fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    await belljar("ps", "--metadata", "k=v")
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == ["ID", "TEMPLATE", "STATE", "AGE", "EXPIRES", "IN", "PARENT", "METADATA"]
    assert "\x1b" not in table
    assert stub_fleet.log == [("list", {"k": "v"})]
    await belljar("ps", "--json")
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["id"], record["metadata"]) == ("sb-1", {"k": "v\x1b[31m"})


async def test_fork_and_moves_reach_the_sandbox(
    stub_fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    await belljar("fork", "sb-1", "-n", "2", "--metadata", "x=1")
    assert capsys.readouterr().out == "child-0\nchild-1\n"
    for move in ("pause", "resume", "hibernate", "wake"):
        await belljar(move, "sb-1")
    await belljar("kill", "sb-1", "sb-2")
    await belljar("kill", "--all")
    done = [(entry[0], entry[1]) for entry in stub_fleet.log if entry[0] != "list"]
    moves = [("sb-1", move) for move in ("fork", "pause", "resume", "hibernate", "wake", "kill")]
    assert done == [*moves, ("sb-2", "kill"), ("sb-1", "kill")]
    assert stub_fleet.log[0][2:] == ((2,), {"metadata": {"x": "1"}})


async def test_kill_wants_to_know_which(stub_fleet: StubFleet, belljar: Command) -> None:
    for words in (["kill"], ["kill", "--all", "sb-1"]):
        with pytest.raises(InvalidInput):
            await belljar(*words)
    assert stub_fleet.log == []


async def test_an_unknown_sandbox_is_not_found(stub_fleet: StubFleet, belljar: Command) -> None:
    for words in (["pause", "nope"], ["exec", "nope", "true"], ["cp", "a", "nope:/a"], ["stats", "nope"], ["ps", "nope"]):
        with pytest.raises(SandboxNotFound):
            await belljar(*words)


async def test_snapshots_stats_and_gc(
    stub_fleet: StubFleet, belljar: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    monkeypatch.setattr("belljar.templates.pruning.prune", lambda settings: [tmp_path / "templates" / ("0" * 64)])
    await belljar("snapshot", "create", "sb-1")
    assert capsys.readouterr().out == "snap-1\n"
    await belljar("snapshot", "list")
    assert "5.0 MiB" in capsys.readouterr().out
    await belljar("snapshot", "list", "--json")
    assert json.loads(capsys.readouterr().out)[0]["size_bytes"] == 5 << 20
    await belljar("snapshot", "rm", "snap-1")
    assert stub_fleet.log[-1][:2] == ("snap-1", "rm")
    await belljar("stats", "sb-1")
    assert capsys.readouterr().out.splitlines()[1:] == ["guest.memory.total  1", "guest.memory.used   0.50"]
    await belljar("stats", "sb-1", "--json")
    assert json.loads(capsys.readouterr().out)["guest"]["memory"]["total"] == 1
    await belljar("gc")
    assert "sb-9" in capsys.readouterr().out


def test_pairs_keep_equals_signs_in_values_and_need_a_name() -> None:
    assert parse_pairs(["A=", "B=1=2", "A=3"], "--env") == {"A": "3", "B": "1=2"}
    for wrong in ("A", "=1", ""):
        with pytest.raises(InvalidInput, match="NAME=VALUE"):
            parse_pairs([wrong], "--env")


def test_rendering() -> None:
    assert one_line("a\tb\r\nc\x1b\x00\u202e") == "a b  c\\x1b\\x00\\x202e"
    assert render_table(("A", "LONG"), [(1, None), ("wide", "x")]) == "A     LONG\n1     -\nwide  x"
    assert [render_age(s) for s in (-5, 59, 61, 3661, 90_000)] == ["0s", "59s", "1m01s", "1h01m", "1d01h"]
    assert [render_bytes(s) for s in (0, 1023, 1536, 3 << 30, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB", "5.0 TiB"]
    assert json.loads(render_json({"name": "\udcff"})) == {"name": "\udcff"}
    assert flatten({"a": {"b": [1, 2], "c": None}, "d": 0.5}) == [("a.b", "1, 2"), ("a.c", "-"), ("d", "0.50")]
