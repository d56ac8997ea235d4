"""A server that ends, however it ends, loses nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pandastack
import pytest
from pandastack.exceptions import BadRequestError

from belljar.settings import Settings
from tests.server.conftest import Api, MakeBox, Server, eventually


def test_after_kill_9_everything_is_found_again(own_home: Path) -> None:
    server = Server(own_home)
    try:
        client = pandastack.Client(api_key=server.token, api_url=server.url)
        token = client.tokens.create("second").token
        box = client.sandboxes.create("base", metadata={"k": "v"}, ttl_seconds=3000, persistent=True)
        asleep = client.sandboxes.create("base")
        doomed = client.sandboxes.create("base")
        box.exec("echo kept > /tmp/kept; nohup sleep 4713 >/dev/null 2>&1 &")
        asleep.hibernate()
        doomed.set_ttl(1)
        server.stop(signal.SIGKILL)

        server.start()
        assert server.token is None, "an admin token is shown once"
        client = pandastack.Client(api_key=str(token), api_url=server.url)
        again = client.sandboxes.get(box.id)
        assert (again.status, again.metadata, again.persistent) == ("running", {"k": "v"}, True)
        assert again.lifecycle()["ttl_seconds"] == 3000
        assert again.exec("cat /tmp/kept; pgrep -fc '[s]leep 4713'").stdout == "kept\n1\n"
        assert client.sandboxes.get(asleep.id).status == "hibernated"
        assert client.sandboxes.get(asleep.id).exec("echo up").stdout == "up\n"
        eventually(lambda: doomed.id not in [found.id for found in client.sandboxes.list()], "the end of its time")

        assert server.stop() == 0, "told to stop, it stops in good order"
        server.start()
        client = pandastack.Client(api_key=str(token), api_url=server.url)
        assert client.sandboxes.get(box.id).exec("cat /tmp/kept").stdout == "kept\n"
        for name in (box.id, asleep.id):
            client.sandboxes.delete(name)
    finally:
        if server.process.poll() is None:
            server.stop()


def test_a_machine_that_died_is_told_of(settings: Settings, api: Api, make: MakeBox) -> None:
    box = make()
    record = json.loads((settings.home / "sandboxes" / box.id / "machine.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    events = f"/v1/sandboxes/{box.id}/events"
    eventually(lambda: api("GET", events).json()["events"][-1]["type"] == "sandbox.died", "the event of its death")
    assert box.refresh().status == "failed"
    with pytest.raises(BadRequestError):
        box.exec("true")
