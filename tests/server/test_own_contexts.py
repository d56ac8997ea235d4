"""Code contexts over HTTP: cells as wholes and event by event, state, interrupts, variables, cells that outlive their client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pandastack
import pytest

from tests.server.conftest import Api, eventually
from tests.server.own import streaming


@pytest.fixture
def at(box: pandastack.Sandbox) -> str:
    return f"/v1/sandboxes/{box.id}/contexts"


@pytest.fixture
def context(api: Api, at: str) -> Any:
    made = api("POST", at, json={})
    assert made.status_code == 201, made.text
    yield f"{at}/{made.json()['id']}"
    api("DELETE", f"{at}/{made.json()['id']}")


def run(api: Api, context: str, code: str, **wishes: Any) -> dict[str, Any]:
    answer = api("POST", f"{context}/run", json={"code": code, **wishes})
    assert answer.status_code == 200, answer.text
    execution: dict[str, Any] = answer.json()
    return execution


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()
    return thread, done


def test_contexts_are_made_listed_and_ended(api: Api, at: str) -> None:
    made = api("POST", at, json={"language": "bash", "cwd": "/tmp", "env": {"A": "b"}}).json()
    assert made["language"] == "bash" and made["state"] in ("idle", "starting") and not made["default"]
    listed = api("GET", at).json()
    assert made["id"] in [each["id"] for each in listed["contexts"]] and {"python", "bash"} <= set(listed["languages"])
    assert run(api, f"{at}/{made['id']}", 'echo "$A $PWD"')["stdout"] == "b /tmp\n"
    assert api("GET", f"{at}/{made['id']}").json()["cells"] == 1
    assert api("DELETE", f"{at}/{made['id']}").status_code == 204
    assert api("GET", f"{at}/{made['id']}").json()["code"] == "context_not_found"


def test_a_cell_is_an_execution_and_its_state_stays(api: Api, context: str) -> None:
    first = run(api, context, "import sys\nx = 6\nprint('out')\nprint('err', file=sys.stderr)\nx * 7", changes=True)
    assert (first["stdout"], first["stderr"], first["error"]) == ("out\n", "err\n", None)
    assert first["results"][0]["main"] and first["results"][0]["data"]["text/plain"] == "42"
    assert "x" in [each["name"] for each in first["changes"]["added"]]
    assert run(api, context, "input()", stdin=f"{7}\n")["results"][0]["data"]["text/plain"] == "'7'"
    failed = run(api, context, "x / 0")["error"]
    assert (failed["kind"], failed["name"], failed["state_lost"]) == ("exception", "ZeroDivisionError", False)
    assert run(api, context, "x")["results"][0]["data"]["text/plain"] == "6"
    found = {each["name"]: each for each in api("GET", f"{context}/variables").json()["variables"]}
    assert found["x"]["type"] == "int" and found["x"]["preview"] == "6"


def test_a_time_limit_is_data_and_keeps_the_state(api: Api, context: str) -> None:
    run(api, context, "kept = 1")
    stopped = run(api, context, "import time; time.sleep(60)", timeout_seconds=0.5)
    assert stopped["error"]["kind"] == "timeout" and not stopped["error"]["state_lost"]
    assert run(api, context, "kept")["error"] is None


def test_budgets_cut_what_comes_back(api: Api, context: str) -> None:
    cut = run(api, context, "print('x' * 10000)", max_output=1000)
    assert cut["truncated"]["stdout"]["omitted"] > 8000 and len(cut["stdout"]) < 2000


def test_events_come_as_they_happen(api: Api, context: str) -> None:
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\n5"
    with streaming(api, "POST", f"{context}/run?stream=1", json={"code": code}) as found:
        events = list(found)
    names = [name for name, _ in events]
    assert names[0] == "started" and names[-1] == "done" and {"stdout", "stderr", "result"} <= set(names)
    data = dict(events)
    assert data["stdout"] == {"text": "a\n"} and data["stderr"] == {"text": "b\n"}
    assert data["result"]["main"] and not data["result"]["update"] and data["result"]["data"]["text/plain"] == "5"
    assert data["started"]["id"] == data["done"]["id"] and data["done"]["duration_s"] >= 0
    with streaming(api, "POST", f"{context}/run?stream=1", json={"code": "1 / 0"}) as found:
        events = list(found)
    assert [name for name, _ in events] == ["started", "error", "done"] and events[1][1]["kind"] == "exception"


def test_an_event_is_there_before_the_cell_ends(api: Api, context: str) -> None:
    code = "import pathlib, time\nprint('first', flush=True)\nwhile not pathlib.Path('/tmp/go').exists(): time.sleep(0.05)\n"
    with streaming(api, "POST", f"{context}/run?stream=1", json={"code": code}) as found:
        assert next(found)[0] == "started" and next(found) == ("stdout", {"text": "first\n"})
        assert api("GET", context).json()["state"] == "busy"
        sandbox = context.partition("/contexts")[0]
        assert api("PUT", f"{sandbox}/fs?path=/tmp/go", data=b"").status_code == 200
        assert list(found)[-1][0] == "done"
        api("DELETE", f"{sandbox}/fs?path=/tmp/go")


def test_default_is_the_first_of_its_language(api: Api, at: str) -> None:
    run(api, f"{at}/default", "mark = 'here'")
    assert run(api, f"{at}/default:python", "mark")["results"][0]["data"]["text/plain"] == "'here'"
    assert api("GET", f"{at}/default").json()["language"] == "python"
    run(api, f"{at}/default:bash", "mark=there")
    assert run(api, f"{at}/default:sh", "echo $mark")["stdout"] == "there\n"
    with streaming(api, "POST", f"{at}/default:bash/run?stream=1", json={"code": "echo $mark"}) as found:
        assert ("stdout", {"text": "there\n"}) in list(found)
    first = api("GET", f"{at}/default:bash").json()["id"]
    assert api("GET", f"{at}/default:sh").json()["id"] == first
    assert api("DELETE", f"{at}/default:bash").status_code == 204
    assert api("GET", f"{at}/default:bash").status_code == 404 == api("GET", f"{at}/{first}").status_code
    assert run(api, f"{at}/default:bash", "echo [$mark]")["stdout"] == "[]\n"
    assert api("DELETE", f"{at}/default:bash").status_code == 204


def test_a_running_cell_is_interrupted_and_keeps_its_state(api: Api, context: str) -> None:
    assert api("POST", f"{context}/interrupt").json() == {"interrupted": False}
    run(api, context, "kept = 1")
    thread, done = in_background(lambda: run(Api(api.url, api.token), context, "import time; time.sleep(60)"))
    eventually(lambda: api("GET", context).json()["state"] == "busy", "a running cell")
    assert api("GET", f"{context}/variables").status_code == 409
    assert api("POST", f"{context}/interrupt").json() == {"interrupted": True}
    thread.join(60)
    assert done and done[0]["error"]["kind"] == "interrupted"
    assert run(api, context, "kept")["error"] is None


def test_a_restart_forgets_everything_but_the_name(api: Api, context: str) -> None:
    run(api, context, "gone = 1")
    assert api("POST", f"{context}/restart").status_code == 204
    assert run(api, context, "gone")["error"]["name"] == "NameError"


def test_a_client_that_leaves_interrupts_its_cell_unless_told_otherwise(api: Api, context: str) -> None:
    code = "import time\nprint('begun', flush=True)\ntime.sleep(4)\nprint('ended')"
    for on_disconnect, ended in (("interrupt", False), ("continue", True)):
        body = {"code": code, "on_disconnect": on_disconnect}
        with streaming(api, "POST", f"{context}/run?stream=1", json=body) as found:
            started = next(found)[1]
            assert next(found)[0] == "stdout"
        with streaming(api, "GET", f"{context}/attach?execution={started['id']}") as found:
            events = list(found)
        assert events[0] == ("started", started) and events[-1][0] == "done"
        text = "".join(data["text"] for name, data in events if name == "stdout")
        assert text == ("begun\nended\n" if ended else "begun\n")
        assert ("error" in [name for name, _ in events]) is not ended


BAD_RUNS: list[Any] = [
    {},
    {"code": 7},
    {"code": "1", "timeout_seconds": 0},
    {"code": "1", "timeout_seconds": 1e11},
    {"code": "1", "timeout_seconds": "1"},
    {"code": "1", "stdin": 7},
    {"code": "1", "stdin": "x" * 100_000},
    {"code": "1", "changes": "yes"},
    {"code": "1", "on_disconnect": "explode"},
    {"code": "1", "max_output": -1},
    {"code": "1", "max_results": 2**40},
    {"code": "1", "budget": 1},
    {"code": "x" * (5 << 20)},
]


@pytest.mark.parametrize("body", BAD_RUNS, ids=lambda body: str(body)[:60])
def test_bad_cells_are_told_and_not_run(api: Api, at: str, body: dict[str, Any]) -> None:
    for query in ("", "?stream=1"):
        answer = api("POST", f"{at}/default/run{query}", json=body)
        assert 400 <= answer.status_code < 500 and answer.json()["error"], answer.text


def test_bad_contexts(api: Api, at: str) -> None:
    for body, status in (
        ({"language": "klingon"}, 422),
        ({"language": 7}, 400),
        ({"language": ""}, 400),
        ({"cwd": "/no/such"}, 404),
        ({"user": "nobody-at-all"}, 400),
        ({"env": {"A": 1}}, 400),
        ({"colour": "red"}, 400),
    ):
        answer = api("POST", at, json=body)
        assert answer.status_code == status, (body, answer.text)
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/run", {"code": "1"}),
        ("POST", "/run?stream=1", {"code": "1"}),
        ("POST", "/interrupt", None),
        ("POST", "/restart", None),
        ("GET", "/variables", None),
        ("GET", "/attach", None),
    ):
        answer = api(method, f"{at}/c9-9{path}", json=body)
        assert answer.status_code == 404 and answer.json()["code"] == "context_not_found", (path, answer.text)
    assert api("POST", f"{at}/default:klingon/run", json={"code": "1"}).status_code == 422
    assert api("POST", f"{at}/default:/run", json={"code": "1"}).status_code == 400
    assert api("POST", f"{at}/default/run?stream=maybe", json={"code": "1"}).status_code == 400
    assert api("GET", f"{at}/default/attach?execution={'x' * 500}").status_code == 400
    assert api("GET", f"{at}/default/attach?execution=no-such").status_code in (404, 409)


def test_code_that_runs_once_leaves_nothing(api: Api, at: str) -> None:
    repl = at.replace("/contexts", "/repl")
    before = {each["id"] for each in api("GET", at).json()["contexts"]}
    done = api("POST", repl, json={"code": "once = 41\nprint('said')\nonce + 1"}).json()
    assert (done["stdout"], done["exit"], done["error"]) == ("said\n", 0, None) and done["results"][0]["text/plain"] == "42"
    assert "NameError" in api("POST", repl, json={"code": "once"}).json()["error"]
    assert api("POST", repl, json={"language": "bash", "code": "echo $((1 + 1))"}).json()["stdout"] == "2\n"
    slow = api("POST", repl, json={"code": "import time; time.sleep(60)", "timeout_ms": 500})
    assert slow.status_code == 504 and "timeout" in slow.json()["error"]
    assert api("POST", repl, json={"language": "klingon", "code": ""}).status_code == 422
    assert api("POST", repl, json={"code": 7}).status_code == 400
    assert {each["id"] for each in api("GET", at).json()["contexts"]} - before <= {"default"}
    assert "python" in api("GET", "/v1/repl/languages").json()["languages"]


def test_cells_of_one_context_wait_for_each_other(api: Api, context: str) -> None:
    first, _ = in_background(lambda: run(Api(api.url, api.token), context, "import time; time.sleep(2); order = ['first']"))
    eventually(lambda: api("GET", context).json()["state"] == "busy", "the first of two cells")
    assert run(api, context, "order + ['second']")["results"][0]["data"]["text/plain"] == "['first', 'second']"
    first.join(60)


def test_of_many_who_need_the_first_context_one_makes_it(api: Api, at: str) -> None:
    work = [in_background(lambda: run(Api(api.url, api.token), f"{at}/default:bash", "echo $$")["stdout"]) for _ in range(4)]
    for thread, _ in work:
        thread.join(120)
    assert len({said for _, done in work for said in done}) == 1, work
    assert [each["language"] for each in api("GET", at).json()["contexts"]].count("bash") == 1
    assert api("DELETE", f"{at}/default:bash").status_code == 204
