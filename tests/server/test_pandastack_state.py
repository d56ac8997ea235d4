"""The published client: contexts, pause and sleep, snapshots, forks, and what a sandbox's life is limited by."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pandastack
import pytest
from pandastack.exceptions import BadRequestError, CreateCancelled, NotFoundError, SandboxTimeout, ServerError

from tests.server.conftest import Api, MakeBox, Server, eventually

CHART = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.title("up")
plt.show()
"""


def test_contexts_keep_state_and_bring_charts(api: Api, make: MakeBox) -> None:
    box = make("code-interpreter")
    with box.create_code_context("py") as context:
        assert context.run_code("x = 41\nprint('hi')").logs == {"stdout": "hi\n", "stderr": ""}
        assert context.run_code("x + 1").text == "42"
        chart = context.run_code(CHART, timeout_seconds=120)
        assert chart.error is None and chart.png is not None
        assert base64.b64decode(chart.png).startswith(b"\x89PNG")
        table = context.run_code("import pandas as pd; pd.DataFrame({'a': [1, 2]})", timeout_seconds=120)
        assert "<table" in (table.results[0].html or "") and "a" in (table.text or "")
        failed = context.run_code("1 / 0")
        assert failed.exit_code == 1 and "ZeroDivisionError" in (failed.error or "")
        with pytest.raises(SandboxTimeout):
            context.run_code("while True: pass", timeout_seconds=1)
        assert context.run_code("x").text == "41"
        assert context.id in [found["id"] for found in api("GET", f"/v1/sandboxes/{box.id}/repl/sessions").json()]
    answer = api("POST", f"/v1/sandboxes/{box.id}/repl/sessions/none/run", json={"code": "1"})
    assert (answer.status_code, answer.json()["code"]) == (404, "context_not_found")
    with pytest.raises(BadRequestError):
        box.create_code_context("cobol")


def test_pause_and_resume(box: pandastack.Sandbox) -> None:
    box.pause()
    try:
        assert box.refresh().status == "paused"
        with pytest.raises(BadRequestError, match="paused"):
            box.exec("true")
        box.pause()
    finally:
        box.resume()
    box.resume()
    assert box.refresh().status == "running" and box.exec("echo on").stdout == "on\n"


def test_hibernate_wake_and_what_wakes_by_itself(api: Api, make: MakeBox) -> None:
    box = make(persistent=True)
    box.exec("echo kept > /tmp/kept; nohup sleep 4712 >/dev/null 2>&1 &")
    box.hibernate()
    box.hibernate()
    assert box.refresh().status == "hibernated" and box.persistent
    assert box.lifecycle()["persistent"] is True
    assert box.refresh().status == "hibernated"  # looking does not wake
    box.wake()
    box.wake()
    assert box.refresh().status == "running"
    box.hibernate()
    assert box.filesystem.read("/tmp/kept") == b"kept\n"  # needing the guest does
    assert box.exec("pgrep -f '[s]leep 4712'").exit_code == 0
    told = [event["type"] for event in api("GET", f"/v1/sandboxes/{box.id}/events").json()["events"]]
    moves = ["sandbox.hibernated", "sandbox.woken"]
    assert told == ["sandbox.created", *moves, *moves]


def test_snapshots(client: pandastack.Client, make: MakeBox) -> None:
    box = make()
    box.exec("echo before > /tmp/state")
    taken = box.snapshot()
    box.exec("echo after > /tmp/state")
    copy = make("base", from_snapshot=taken)
    assert copy.exec("cat /tmp/state").stdout == "before\n"
    assert copy.from_snapshot == taken
    assert [found["id"] for found in client.snapshots.list(sandbox_id=box.id)] == [taken]
    assert client.snapshots.get(taken)["sandbox_id"] == box.id
    client.snapshots.delete(taken)
    with pytest.raises(NotFoundError):
        client.snapshots.get(taken)
    with pytest.raises(NotFoundError):
        make("base", from_snapshot=taken)


def test_fork(make: MakeBox) -> None:
    box = make(metadata={"a": "1"})
    box.exec("echo parent > /tmp/who")
    child = box.fork(metadata={"b": "2"})
    try:
        assert child.metadata == {"a": "1", "b": "2", "fork_parent_id": box.id}
        assert child.memory_mb == box.memory_mb
        child.exec("echo child > /tmp/who")
        assert (box.exec("cat /tmp/who").stdout, child.exec("cat /tmp/who").stdout) == ("parent\n", "child\n")
    finally:
        child.kill()


def test_fork_tree_and_promote(client: pandastack.Client, make: MakeBox) -> None:
    box = make(ttl_seconds=3000)
    first, second, third = box.fork_tree(3, metadata={"run": "7"})
    (tree,) = {child.metadata["fork_tree_id"] for child in (first, second, third)}
    assert [child.metadata["fork_index"] for child in (first, second, third)] == ["0", "1", "2"]
    grandchild = second.fork()  # no member of the tree, whatever its parent is
    assert "fork_tree_id" not in grandchild.metadata and grandchild.metadata["run"] == "7"
    with pytest.raises(BadRequestError):
        second.promote(tree_id="tree-of-someone-else")
    with pytest.raises(BadRequestError):
        box.promote()
    done = second.promote(cleanup_siblings=True)
    assert (done["winner"], done["tree_id"], sorted(done["deleted"])) == (second.id, tree, sorted([first.id, third.id]))
    left = {found.id for found in client.sandboxes.list()}
    assert {box.id, second.id, grandchild.id} <= left and not {first.id, third.id} & left
    second.kill()
    grandchild.kill()


def test_explore(client: pandastack.Client, make: MakeBox) -> None:
    box = make()
    found = box.explore(["exit 1", "echo good > /root/no 2>/dev/null || echo good > /home/user/result"], capture_files="/home/user")
    assert found.winner is not None and found.winner_outcome is not None and not found.errors
    assert found.winner_outcome.files_changed == ["/home/user/result"]
    assert len(found.reaped) == 1 and found.tree_id.startswith("tree-")
    assert found.winner.exec("cat /home/user/result").stdout == "good\n"
    assert found.winner.lifecycle()["expires_at"] is None  # what ends forgotten branches does not end the winner
    found.winner.kill()


def test_lifecycle_and_time_to_live(client: pandastack.Client, make: MakeBox) -> None:
    box = make()
    assert box.lifecycle()["ttl_seconds"] == 0
    assert box.set_persistent(True)["persistent"] is True
    assert box.set_ttl(900)["ttl_seconds"] == 900
    assert box.refresh().persistent is True
    box.set_ttl(1)
    eventually(lambda: box.id not in [found.id for found in client.sandboxes.list()], "the end of its time")


def test_a_persistent_sandbox_that_nobody_uses_goes_to_sleep(own_home: Path) -> None:
    server = Server(own_home, BELLJAR_IDLE_TIMEOUT_S="2")
    try:
        client = pandastack.Client(api_key=server.token, api_url=server.url)
        box = client.sandboxes.create("base", persistent=True)
        plain = client.sandboxes.create("base")
        assert box.exec("sleep 5; echo busy").stdout == "busy\n"  # longer than it may be idle, and in use all the while
        eventually(lambda: box.refresh().status == "hibernated", "sleep")
        assert plain.refresh().status == "running"
        api = Api(server.url, str(server.token))
        eventually(lambda: len(api("GET", f"/v1/sandboxes/{box.id}/events").json()["events"]) == 2, "the event")
        events = api("GET", f"/v1/sandboxes/{box.id}/events").json()["events"]
        assert [event["type"] for event in events] == ["sandbox.created", "sandbox.hibernated"]
        assert "not used" in events[-1]["payload"]["reason"]
        assert box.exec("echo back").stdout == "back\n"
        box.kill()
        plain.kill()
    finally:
        server.stop()


def test_ports_and_templates(client: pandastack.Client, box: pandastack.Sandbox) -> None:
    assert box.preview_urls() == {}
    names = [found["name"] if isinstance(found, dict) else found.name for found in client.templates.list()]
    assert "base" in names
    assert client.templates.get("code_interpreter").name == "code-interpreter"
    with pytest.raises(NotFoundError):
        client.templates.get("none")
    with pytest.raises(BadRequestError, match="global"):
        client.templates.delete("base")


def test_a_create_that_does_not_fit_is_tried_again_and_leaves_nothing(own_home: Path) -> None:
    server = Server(own_home, BELLJAR_HOST_MEMORY_RESERVE_MIB=str(2**24))
    refused: list[object] = []
    enough = threading.Event()

    def note(refusal: object) -> None:
        refused.append(refusal)
        if len(refused) == 2:  # the first try and one more
            enough.set()

    try:
        client = pandastack.Client(
            api_key=server.token, api_url=server.url, max_create_retry_seconds=120, on_create_retry=note
        )
        before = {found.id for found in client.sandboxes.list()}
        with pytest.raises(CreateCancelled, match="memory") as given_up:
            client.sandboxes.create("base", cancel=enough)
        assert isinstance(given_up.value.__cause__, ServerError), given_up.value.__cause__
        assert {found.id for found in client.sandboxes.list()} == before
    finally:
        server.stop()
