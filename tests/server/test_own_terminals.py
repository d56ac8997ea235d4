"""Terminals and commands over WebSockets: bytes both ways, sizes, signals, ends, and what a client that leaves takes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandastack
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.server.conftest import Api, Server, eventually
from tests.server.own import read_to_end, read_until, websocket


@pytest.fixture
def at(box: pandastack.Sandbox) -> str:
    return f"/v1/sandboxes/{box.id}"


def running(api: Api, at: str, words: str) -> list[str]:
    found = api("GET", f"{at}/processes").json()["processes"]
    return [each["id"] for each in found if each["running"] and words in each["command"]]


@pytest.mark.parametrize("route", ["exec/pty", "ssh"])
def test_a_shell_with_bytes_sizes_and_an_end(api: Api, at: str, route: str) -> None:
    with websocket(api, f"{at}/{route}?rows=30&cols=90") as shell:
        shell.send(b"stty size; echo $((40 + 2))\n")
        assert b"30 90" in read_until(shell, b"42")
        shell.send(json.dumps({"resize": {"rows": 44, "cols": 111}}))
        shell.send(b"stty size\n")
        read_until(shell, b"44 111")
        shell.send(b"exit 5\n")
        assert read_to_end(shell)[1] == {"exit": 5}
        with pytest.raises(ConnectionClosed) as closed:
            shell.recv(timeout=30)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


def test_what_runs_in_it_and_where_can_be_said(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=id%20-un%3B%20pwd%3B%20tty&cwd=/tmp&user=root") as terminal:
        seen, last = read_to_end(terminal)
    assert last == {"exit": 0} and seen.startswith(b"root\r\n/tmp\r\n/dev/pts/")


def test_a_signal_and_a_key_reach_it(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=cat") as terminal:
        terminal.send(b"echoed\n")
        read_until(terminal, b"echoed\r\nechoed")
        terminal.send(b"\x03")
        assert read_to_end(terminal)[1] == {"exit": 130}
    with websocket(api, f"{at}/exec/pty?cmd=sleep%20600") as terminal:
        terminal.send(json.dumps({"signal": "SIGTERM"}))
        assert read_to_end(terminal)[1] == {"exit": 143}


def test_a_client_that_leaves_ends_the_shell(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=sleep%2061%20%26%20sleep%2061") as terminal:
        eventually(lambda: running(api, at, "sleep 61") != [], "a process in the terminal")
        assert terminal.ping().wait(30)
    eventually(lambda: running(api, at, "sleep 61") == [], "the end of a terminal whose client left")


def test_one_who_vanishes_without_a_word_ends_it_too(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=yes%20filler-{len(at)}") as terminal:
        eventually(lambda: running(api, at, "yes filler") != [], "a process in the terminal")
        terminal.socket.close()
    eventually(lambda: running(api, at, "yes filler") == [], "the end of a terminal whose client vanished")


def test_input_that_nobody_reads_is_bounded_and_the_end_still_comes(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=stty%20raw%20-echo%3B%20echo%20go%3B%20exec%20sleep%20600") as terminal:
        read_until(terminal, b"go")
        for _ in range(20):
            terminal.send(b"x" * 65536)
        terminal.send(json.dumps({"signal": 9}))
        assert read_to_end(terminal)[1] == {"exit": 137}


def test_attaching_to_a_background_terminal_only_lets_go(api: Api, at: str) -> None:
    line = "while read word; do echo got $word; done; echo over"
    process = api("POST", f"{at}/processes", json={"cmd": line, "pty": {"rows": 10, "cols": 40}}).json()["id"]
    with websocket(api, f"{at}/processes/{process}/attach") as terminal:
        terminal.send(b"one\n")
        read_until(terminal, b"got one")
    assert api("GET", f"{at}/processes/{process}").json()["running"]
    with websocket(api, f"{at}/processes/{process}/attach") as terminal:
        assert b"got one" in read_until(terminal, b"got one")  # what was kept comes again
        terminal.send(json.dumps({"stdin_eof": True}))
        seen, last = read_to_end(terminal)
    assert b"over" in seen and last == {"exit": 0}


def test_attaching_to_one_without_a_terminal(api: Api, at: str) -> None:
    process = api("POST", f"{at}/processes", json={"cmd": "cat; echo end >&2", "stdin": True}).json()["id"]
    with websocket(api, f"{at}/processes/{process}/attach") as pipe:
        pipe.send(b"to and fro")
        read_until(pipe, b"to and fro")
        pipe.send(json.dumps({"stdin_eof": True}))
        seen, last = read_to_end(pipe)
    assert seen == b"end\n" and last == {"exit": 0}


@pytest.mark.parametrize("message", ["no json", "[]", "{}", '{"resize": 7}', '{"signal": "NOPE"}', '{"resize": {"rows": 0}}'])
def test_a_bad_wish_is_told_and_ends_it(api: Api, at: str, message: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=sleep%2062") as terminal:
        terminal.send(message)
        _, last = read_to_end(terminal)
        assert last["code"] == "invalid_input" and last["error"]
        with pytest.raises(ConnectionClosed) as closed:
            terminal.recv(timeout=30)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
    eventually(lambda: running(api, at, "sleep 62") == [], "the end of a terminal with a bad wish")


def test_a_message_that_is_too_large_ends_it(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/pty?cmd=sleep%2063") as terminal:
        with pytest.raises(ConnectionClosed) as closed:
            terminal.send(b"x" * (2 << 20))
            terminal.recv(timeout=30)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    eventually(lambda: running(api, at, "sleep 63") == [], "the end of a terminal with a huge message")


def refused(api: Api, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as problem:
        connect(api.url.replace("http://", "ws://") + path, additional_headers=headers, open_timeout=60)
    body = problem.value.response.body
    return problem.value.response.status_code, json.loads(body) if body else {}


def test_who_may_not_is_told_before_the_upgrade(api: Api, other: Api, server: Server, at: str) -> None:
    unknown = "/v1/sandboxes/sb-" + "0" * 16
    mine, theirs = {"Authorization": f"Bearer {api.token}"}, {"X-API-Key": other.token}
    for route in ("exec/pty", "ssh", "exec/ws", "processes/p1-1/attach"):
        assert refused(api, f"{at}/{route}", {})[0] == 401
        assert refused(api, f"{at}/{route}", {"X-API-Key": "pds_" + "0" * 32})[0] == 401
        foreign, nobodys = refused(api, f"{at}/{route}", theirs), refused(api, f"{unknown}/{route}", theirs)
        assert foreign[0] == nobodys[0] == 404
        assert foreign[1]["error"] == nobodys[1]["error"].replace(unknown.rpartition("/")[2], at.rpartition("/")[2])
        assert refused(api, f"{unknown}/{route}", mine)[1]["code"] == "sandbox_not_found"
        assert api("GET", f"{at}/{route}").status_code == 426
    assert refused(api, f"{at}/processes/p9-9/attach", mine)[1]["code"] == "process_not_found"
    for query in ("rows=0", "cols=x", "rows=70000", "cwd=/no/such", "user=nobody-at-all"):
        status, said = refused(api, f"{at}/exec/pty?{query}", mine)
        assert 400 <= status < 500 and said["error"], query


def test_the_token_may_be_in_the_query(api: Api, at: str) -> None:
    url = f"{api.url.replace('http://', 'ws://')}{at}/exec/pty?cmd=true&access_token={api.token}"
    with connect(url, open_timeout=60) as terminal:
        assert read_to_end(terminal)[1] == {"exit": 0}


def test_without_a_token_only_this_machine_itself_gets_in(own_home: Path) -> None:
    server = Server(own_home, "--dev")
    try:
        local = Api(server.url, "none")
        path = "/v1/sandboxes/sb-none/exec/pty"
        assert refused(local, path, {})[0] == 404
        assert refused(local, path, {"Origin": "https://evil.example"})[0] == 403
        assert refused(local, path, {"X-API-Key": "pds_" + "0" * 32})[0] == 401
    finally:
        server.stop()


# -- exec/ws ------------------------------------------------------------------------------------------------------------------


def told(connection: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(connection.recv(timeout=60))
    return message


def test_many_commands_over_one_connection(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/ws") as line:
        line.send(json.dumps({"id": "slow", "cmd": "sleep 1; echo late"}))
        line.send(json.dumps({"id": 2, "cmd": "echo out; echo err >&2; exit 4"}))
        seen: dict[Any, list[dict[str, Any]]] = {"slow": [], 2: []}
        order = []
        while len(order) < 2:
            message = told(line)
            seen[message.pop("id")].append(message)
            if "exit" in message:
                order.append(message["exit"])
        assert order == [4, 0] and seen["slow"] == [{"stream": "stdout", "data": "late\n"}, {"exit": 0}]
        assert {"stream": "stdout", "data": "out\n"} in seen[2] and {"stream": "stderr", "data": "err\n"} in seen[2]


def test_commands_are_cancelled_limited_and_refused_one_by_one(api: Api, at: str) -> None:
    with websocket(api, f"{at}/exec/ws") as line:
        line.send(json.dumps({"id": "a", "cmd": "sleep 64"}))
        line.send(json.dumps({"id": "a", "cmd": "true"}))
        assert told(line)["code"] == "conflict"
        line.send(json.dumps({"id": "b", "cmd": "sleep 64", "timeout_seconds": 0.2}))
        limited = told(line)
        assert limited["id"] == "b" and "timeout" in limited["error"]
        for text in ("no json", "[]", '{"id": NaN, "cmd": "true"}', '{"id": "c", "id": "d", "cmd": "true"}', '{"id": "\\ud800"}'):
            line.send(text)
            refused = told(line)
            assert refused["code"] == "invalid_input" and refused["id"] is None, text
        for bad in ({"id": "c"}, {"cmd": "true"}, {"id": "c", "cmd": 7}, {"id": "c", "cmd": "a", "x": 1}, {"id": [], "cmd": "a"}):
            line.send(json.dumps(bad))
            assert told(line)["code"] == "invalid_input"
        line.send(json.dumps({"id": "never", "cancel": True}))
        line.send(json.dumps({"id": "a", "cancel": True}))
        assert told(line) == {"id": "a", "error": "cancelled", "code": "cancelled"}
        eventually(lambda: running(api, at, "sleep 64") == [], "the end of a command that was cancelled")
        line.send(json.dumps({"id": "a", "cmd": "echo again"}))
        assert told(line) == {"id": "a", "stream": "stdout", "data": "again\n"} and told(line) == {"id": "a", "exit": 0}
        line.send(json.dumps({"id": "left", "cmd": "sleep 65"}))
        eventually(lambda: running(api, at, "sleep 65") != [], "a command that its client will leave")
    eventually(lambda: running(api, at, "sleep 65") == [], "the end of commands whose client left")
