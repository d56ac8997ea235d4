"""Twenty clients at once while the server is killed twice and machines die all the time: no wrong answer, and nothing left over."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.store.db import Records
from tests.server.conftest import Api, Server, eventually
from tests.server.storm import Storm, User

CLIENTS = 20
# Without a time to run for: so many rounds in all, and a machine is killed after each so many of them.
ROUNDS, ROUNDS_PER_DEATH = 21, 2
SECONDS_PER_DEATH = 4.0


@pytest.fixture
def storm(own_home: Path) -> Iterator[Storm]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The same port after every start, as a server's clients know it.
    server = Server(own_home, "--port", str(port), BELLJAR_POOL_SIZE="1")
    assert server.token is not None
    yield Storm(own_home, server, server.token)
    if server.process.poll() is None:
        server.stop()


def machines_of(home: Path) -> dict[int, str]:
    """Processes that write their log into this home, also where nothing of their folder is left."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                log = os.readlink(entry / "fd" / "1")
            except OSError:
                continue
            if log.startswith(f"{home}/"):
                found[int(entry.name)] = log
    return found


def use(storm: Storm, number: int) -> None:
    user = User(storm, number)
    while not storm.over.is_set():
        try:
            user.round()
        except Exception as problem:
            storm.blame(f"client {number} failed: {problem!r}")
            return


def by_rounds(storm: Storm) -> None:
    """A run of a fixed size: what happens when depends on how far it is, not on how fast the host is."""
    deaths = 0
    for share in (1, 2, 3):
        while storm.rounds < ROUNDS * share // 3:
            time.sleep(0.05)
            if storm.rounds // ROUNDS_PER_DEATH > deaths:
                deaths += 1
                storm.kill_machine()
        if share < 3:
            storm.kill_server()


def by_seconds(seconds: float) -> Callable[[Storm], None]:
    def strike(storm: Storm) -> None:
        for _ in range(3):
            until = time.monotonic() + seconds / 3
            while time.monotonic() < until:
                time.sleep(SECONDS_PER_DEATH)
                storm.kill_machine()
            if storm.counts["server killed"] < 2:
                storm.kill_server()

    return strike


@pytest.mark.timeout(1800)
def test_no_wrong_answer_and_nothing_left_over(storm: Storm, own_home: Path) -> None:
    seconds = float(os.environ.get("BELLJAR_FAULT_SECONDS", "0"))
    users = [threading.Thread(target=use, args=(storm, number), daemon=True) for number in range(CLIENTS)]
    for user in users:
        user.start()
    try:
        (by_seconds(seconds) if seconds else by_rounds)(storm)
    finally:
        storm.over.set()
        for user in users:
            user.join(600)
    assert not any(user.is_alive() for user in users), "a client still waits for an answer"
    print(dict(storm.counts.most_common()))
    assert not storm.wrong, f"{len(storm.wrong)} wrong answers, {dict(storm.counts)}:\n" + "\n".join(sorted(storm.wrong)[:40])
    assert storm.counts["server killed"] == 2 and storm.counts["machine killed"], dict(storm.counts)
    assert storm.counts["round whole"], dict(storm.counts)
    check_nothing_is_left(storm, own_home)


def check_nothing_is_left(storm: Storm, home: Path) -> None:
    """Sandboxes whose creation was never answered are the only ones left, can be seen, and go when they are told to."""
    api = Api(storm.server.url, storm.token)
    listed = {found["id"]: found["status"] for found in api("GET", "/v1/sandboxes").json()}
    assert len(listed) <= storm.counts["round lost to a broken connection"], f"{listed}, {dict(storm.counts)}"
    for sandbox_id in listed:
        assert api("DELETE", f"/v1/sandboxes/{sandbox_id}").status_code == 204
    assert api("GET", "/v1/sandboxes").json() == []
    taken = [found["id"] for found in api("GET", "/v1/snapshots").json()["snapshots"]]
    assert len(taken) <= storm.counts["round lost to a broken connection"], f"{taken}, {dict(storm.counts)}"
    for snapshot_id in taken:
        assert api("DELETE", f"/v1/snapshots/{snapshot_id}").status_code == 204
    # Records of starts that were cut short are removed by the server's next round of cleaning.
    records = Records(home / "belljar.db")
    eventually(lambda: {record.state for record in records.list_sandboxes()} <= {"pooled"}, "an end of all records")
    assert storm.server.stop() == 0
    # Only with the server do machines end that it kept ready.
    assert [record.id for record in records.list_sandboxes()] == []
    records.close()
    assert machines_of(home) == {}
    assert [[entry.name for entry in (home / name).iterdir()] for name in ("sandboxes", "snapshots", "tmp")] == [[], [], []]
