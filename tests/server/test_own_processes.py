"""Processes over HTTP: run and streamed, started and found again, fed, signalled, and gone with a client that leaves."""

from __future__ import annotations

import base64
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandastack
import pytest

from tests.server.conftest import Api, Server, eventually
from tests.server.own import events, output, streaming, websocket


@pytest.fixture
def at(box: pandastack.Sandbox) -> str:
    return f"/v1/sandboxes/{box.id}/processes"


def ran(api: Api, at: str, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    with streaming(api, "POST", f"{at}/run", json=body) as found:
        return list(found)


def is_running(api: Api, at: str, process_id: str) -> bool:
    running: bool = api("GET", f"{at}/{process_id}").json()["running"]
    return running


def test_a_run_is_streamed_with_offsets_and_an_end(api: Api, at: str) -> None:
    found = ran(api, at, cmd="echo one; echo two >&2; sleep 0.2; echo three; exit 7")
    assert found[0][0] == "started" and set(found[0][1]) == {"id", "pid"}
    assert output(found) == b"one\nthree\n" and output(found, "stderr") == b"two\n"
    offsets = [data["offset"] for name, data in found if name == "stdout"]
    assert (offsets[0], offsets[-1]) == (0, len(b"one\n"))
    name, ended = found[-1]
    assert name == "exit" and (ended["exit_code"], ended["signal"], ended["timed_out"]) == (7, None, False)
    assert ended["duration_seconds"] > 0 and ended["dropped"] == {"stdout": 0, "stderr": 0}


def test_how_it_runs_can_be_said(api: Api, at: str) -> None:
    found = ran(api, at, argv=["sh", "-c", 'echo "$PWD $A $(id -un) $(cat)"'], cwd="/tmp", env={"A": "b"}, user="root", input="hi")
    assert output(found) == b"/tmp b root hi\n"
    raw = bytes(range(256))
    assert output(ran(api, at, cmd="cat", input_base64=base64.b64encode(raw).decode())) == raw
    assert b"30 100" in output(ran(api, at, cmd="stty size", pty={"rows": 30, "cols": 100}))


def test_a_time_limit_ends_it_and_is_told_as_its_end(api: Api, at: str) -> None:
    _, ended = ran(api, at, cmd="sleep 60", timeout_seconds=0.5)[-1]
    assert ended["timed_out"] and ended["signal"] == 9


def test_a_client_that_leaves_ends_what_it_ran(api: Api, at: str) -> None:
    with streaming(api, "POST", f"{at}/run", json={"cmd": "while sleep 0.1; do echo tick; done"}) as found:
        started = next(found)[1]
        assert next(found)[0] == "stdout" and is_running(api, at, started["id"])
    eventually(lambda: not is_running(api, at, started["id"]), "the end of a process whose client left")


def test_a_background_process_lives_on_and_is_followed_from_any_byte(api: Api, at: str) -> None:
    made = api("POST", at, json={"cmd": "echo ready; read word; echo got $word; exit 3", "stdin": True, "env": {"X": "1"}})
    assert made.status_code == 201 and made.json()["running"] and made.json()["background"], made.text
    process = made.json()["id"]
    assert process in [each["id"] for each in api("GET", at).json()["processes"]]
    with streaming(api, "GET", f"{at}/{process}/output") as found:
        name, attached = next(found)
        assert (name, attached["id"], attached["stdout_offset"]) == ("attached", process, 0)
        assert attached["dropped"] == {"stdout": 0, "stderr": 0} and output([next(found)]) == b"ready\n"
    assert is_running(api, at, process)
    assert api("POST", f"{at}/{process}/stdin?eof=1", data=b"wo" + b"rd\n").status_code == 204
    eventually(lambda: not is_running(api, at, process), "the end of a process that was fed")
    with streaming(api, "GET", f"{at}/{process}/output?stdout_offset=2") as found:
        rest = list(found)
    assert rest[0][1]["stdout_offset"] == 2 and output(rest) == b"ady\ngot word\n"
    assert rest[-1][0] == "exit" and rest[-1][1]["exit_code"] == 3
    shown = api("GET", f"{at}/{process}").json()
    assert (shown["running"], shown["exit_code"], shown["stdout_bytes"]) == (False, 3, len(b"ready\ngot word\n"))
    assert api("POST", f"{at}/{process}/stdin", data=b"more").status_code == 409
    assert api("POST", f"{at}/{process}/signal", json={"signal": "TERM"}).status_code == 409


def test_output_that_is_no_longer_kept_is_counted(api: Api, at: str) -> None:
    process = api("POST", at, json={"argv": ["head", "-c", "3000000", "/dev/zero"]}).json()["id"]
    eventually(lambda: not is_running(api, at, process), "the end of head")
    with streaming(api, "GET", f"{at}/{process}/output") as found:
        (_, attached), *rest = list(found)
    assert attached["dropped"]["stdout"] == attached["stdout_offset"] > 0
    assert len(output(rest)) == 3_000_000 - attached["stdout_offset"] == 3_000_000 - rest[-1][1]["dropped"]["stdout"]


def test_signals_reach_the_process_or_all_that_came_of_it(api: Api, at: str) -> None:
    for body in ({"signal": "SIGTERM"}, {"signal": 15, "tree": True}):
        process = api("POST", at, json={"cmd": "sleep 600 & wait"}).json()["id"]
        assert api("POST", f"{at}/{process}/signal", json=body).status_code == 204
        eventually(lambda name=process: not is_running(api, at, name), "the end of a process that was signalled")  # type: ignore[misc]
        assert api("GET", f"{at}/{process}").json()["signal"] == 15
    process = api("POST", at, json={"cmd": "sleep 600"}).json()["id"]
    assert api("DELETE", f"{at}/{process}").status_code == 204
    eventually(lambda: not is_running(api, at, process), "the end of a process that was killed")
    assert api("DELETE", f"{at}/{process}").status_code == 204


def test_a_terminal_can_be_resized(api: Api, at: str) -> None:
    line = "stty size; read _; stty size"
    process = api("POST", at, json={"cmd": line, "pty": {"rows": 20, "cols": 70}}).json()["id"]
    with streaming(api, "GET", f"{at}/{process}/output") as found:
        next(found)
        assert output([next(found)]).startswith(b"20 70")
        assert api("POST", f"{at}/{process}/resize", json={"rows": 33, "cols": 99}).status_code == 204
        assert api("POST", f"{at}/{process}/stdin", data=b"\n").status_code == 204
        assert b"33 99" in output(list(found))
    plain = api("POST", at, json={"cmd": "sleep 600"}).json()["id"]
    assert api("POST", f"{at}/{plain}/resize", json={"rows": 1, "cols": 1}).status_code == 409
    assert api("DELETE", f"{at}/{plain}").status_code == 204


def test_a_newer_follower_takes_over_and_the_older_is_told(api: Api, at: str) -> None:
    process = api("POST", at, json={"cmd": "sleep 600"}).json()["id"]
    with streaming(api, "GET", f"{at}/{process}/output") as older:
        next(older)
        with streaming(api, "GET", f"{at}/{process}/output") as newer:
            next(newer)
            name, said = next(older)
            assert name == "error" and said["code"] == "conflict"
    assert is_running(api, at, process) and api("DELETE", f"{at}/{process}").status_code == 204


BAD_STARTS: list[Any] = [
    {},
    {"cmd": ""},
    {"cmd": "true", "argv": ["true"]},
    {"argv": []},
    {"argv": "true"},
    {"argv": ["a\0b"]},
    {"cmd": ["true"]},
    {"cmd": "true", "cwd": "/no/such/folder"},
    {"cmd": "true", "user": "nobody-at-all"},
    {"cmd": "true", "env": {"A=B": "1"}},
    {"cmd": "true", "env": {"A": 1}},
    {"cmd": "true", "pty": {"rows": 0, "cols": 80}},
    {"cmd": "true", "pty": {"rows": 24}},
    {"cmd": "true", "pty": True},
    {"cmd": "true", "stdin": "yes"},
    {"cmd": "true", "timeout_seconds": 0},
    {"cmd": "true", "timeout_seconds": -1},
    {"cmd": "true", "timeout_seconds": 1e11},
    {"cmd": "true", "tiemout": 1},
    {"argv": ["/no/such/program"]},
]


@pytest.mark.parametrize("body", BAD_STARTS, ids=str)
def test_what_cannot_be_started_is_told_before_anything_runs(api: Api, at: str, body: dict[str, Any]) -> None:
    before = len(api("GET", at).json()["processes"])
    for path in (at, f"{at}/run"):
        answer = api("POST", path, json=body)
        assert 400 <= answer.status_code < 500 and isinstance(answer.json()["error"], str), answer.text
    assert len(api("GET", at).json()["processes"]) == before


def test_bad_input_of_a_run_is_told(api: Api, at: str) -> None:
    for wish in ({"input": "a", "input_base64": "YQ=="}, {"input_base64": "no base64!"}, {"input": 7}):
        assert api("POST", f"{at}/run", json={"cmd": "cat", **wish}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/output", None),
        ("POST", "/stdin", None),
        ("POST", "/signal", {"signal": "TERM"}),
        ("POST", "/resize", {"rows": 1, "cols": 1}),
    ],
)
def test_a_process_that_is_not_there(api: Api, at: str, method: str, path: str, body: Any) -> None:
    for name in ("p9-999", "x" * 500, "%ff"):
        answer = api(method, f"{at}/{name}{path}", json=body)
        assert answer.status_code in (400, 404) and answer.json()["error"], answer.text
    assert api(method, f"{at}/p9-999{path}", json=body).json()["code"] == "process_not_found"


def test_bad_wishes_to_a_process(api: Api, at: str) -> None:
    process = api("POST", at, json={"cmd": "sleep 600"}).json()["id"]
    bad: list[tuple[str, Any]] = [
        ("/signal", {}),
        ("/signal", {"signal": "NOPE"}),
        ("/signal", {"signal": 0}),
        ("/signal", {"signal": 65}),
        ("/signal", {"signal": True}),
        ("/signal", {"signal": "TERM", "tree": 1}),
        ("/resize", {"rows": 1}),
        ("/resize", {"rows": "1", "cols": 1}),
    ]
    for path, body in bad:
        assert api("POST", f"{at}/{process}{path}", json=body).status_code == 400, (path, body)
    for query in ("stdout_offset=-1", "stderr_offset=x", "stdout_offset=1e3x"):
        assert api("GET", f"{at}/{process}/output?{query}").status_code == 400, query
    assert api("POST", f"{at}/{process}/stdin?eof=perhaps").status_code == 400
    assert is_running(api, at, process) and api("DELETE", f"{at}/{process}").status_code == 204


def test_what_a_run_wrote_is_in_the_log(api: Api, at: str) -> None:
    ran(api, at, cmd="echo seen-in-the-log")
    with api("GET", f"{at.removesuffix('/processes')}/logs") as answer:
        assert "seen-in-the-log" in answer.text


def test_a_stream_that_fails_at_once_is_an_ordinary_error(api: Api, at: str) -> None:
    answer = api("GET", f"{at}/p9-1/output", stream=True)
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/json"
    assert list(events(answer)) == []


def resident_kib(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


@pytest.mark.parametrize("kind", ["events", "socket"])
def test_a_client_that_does_not_read_costs_the_server_nothing(server: Server, api: Api, at: str, kind: str) -> None:
    """Whoever writes is held back instead, and the process ends with the client."""

    def unread() -> list[dict[str, Any]]:
        found = api("GET", at).json()["processes"]
        return [each for each in found if each["running"] and "yes-unread" in each["command"]]

    def written() -> int:
        return int(unread()[0]["stdout_bytes"])

    before = resident_kib(server)
    with ExitStack() as stack:
        if kind == "events":
            stack.enter_context(streaming(api, "POST", f"{at}/run", json={"cmd": "yes yes-unread"}))
        else:
            stack.enter_context(websocket(api, f"{at.removesuffix('/processes')}/exec/pty?cmd=yes%20yes-unread"))
        sizes = [-1, written()]
        while sizes[-1] == 0 or sizes[-1] != sizes[-2]:
            time.sleep(1)
            sizes.append(written())
            assert len(sizes) < 120, f"it was never held back: {sizes}"
        assert resident_kib(server) - before < 32 * 1024
    eventually(lambda: unread() == [], "the end of a process that nobody read")
