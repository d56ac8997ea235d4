"""What a cell's events add up to, and what becomes of events that no honest guest sends. No sandbox needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar.errors import AgentProtocol
from belljar.fleet import cell_reader
from belljar.fleet.cell_reader import SLACK_BYTES, Budget, CellReader
from belljar.fleet.execution import Clear, Done, Event, Execution, Failure, Fold, Output, Started, Stderr, Stdout
from belljar.fleet.results import CHART, Changes, Cut, ExecutionError, Result, Truncated
from belljar.vm.link import Data, Message

STARTED = {"started": {"execution": "e1", "count": 3}}
DONE: dict[str, Any] = {
    "execution": "e1",
    "count": 3,
    "duration_s": 0.5,
    "changes": None,
    "truncated": {"stdout": None, "stderr": None, "results": None},
}
VARIABLE = {"name": "x", "type": "int", "shape": None, "size_bytes": 28, "preview": "1"}
CHANGES = {
    "variables": {"added": [VARIABLE], "changed": [], "removed": ["y"]},
    "files": {"added": [{"path": "/a", "size": 1}], "changed": [], "removed": ["/b"], "complete": False},
}
ERROR = {"kind": "exception", "name": "E", "value": "v", "traceback": ["l"], "state_lost": False, "peak_memory_bytes": None}


def output(parts: list[tuple[str, bytes, str]], **changes: Any) -> list[Data | Message]:
    """An output as the agent sends it: the announcement, then the bytes."""
    header = {"main": False, "metadata": {}, "display_id": None, "update": False, **changes}
    announced = [{"mime": mime, "size": len(data), "kind": kind} for mime, data, kind in parts]
    blob = b"".join(data for _, data, _ in parts)
    return [Message({"output": {**header, "parts": announced}}), *([Data(3, blob)] if blob else [])]


def text(value: str, **changes: Any) -> list[Data | Message]:
    return output([("text/plain", value.encode(), "text")], **changes)


def read(*items: Data | Message, budget: Budget | None = None) -> list[Event]:
    reader = CellReader(budget or Budget())
    return [event for item in items for event in reader.take(item)]


def fold(*items: Data | Message) -> Execution:
    folded = Fold()
    for event in read(Message(STARTED), *items, Message({"done": DONE})):
        folded.take(event)
    return folded.execution


# -- what honest events become


def test_an_execution_has_everything_that_happened() -> None:
    cuts = {"stdout": {"omitted": 7, "file": "/f", "complete": False, "head": 3}, "stderr": None}
    done = {**DONE, "changes": CHANGES, "truncated": {**cuts, "results": {"omitted": 1, "files": ["/a", "/b"], "complete": True}}}
    items = [Message(STARTED), Data(1, b"out"), Data(2, b"err"), *text("41"), *text("42", main=True), Message({"error": ERROR})]
    folded = Fold()
    for event in read(*items, Message({"done": done})):
        folded.take(event)
    execution = folded.execution
    assert (execution.id, execution.count, execution.duration_s) == ("e1", 3, 0.5)
    assert (execution.stdout, execution.stderr, execution.text) == ("out", "err", "42")
    assert [result.text for result in execution.results] == ["41", "42"]
    assert execution.error == ExecutionError("exception", "E", "v", ("l",))
    assert execution.truncated == Truncated(Cut(7, ("/f",), complete=False, head=3), None, Cut(1, ("/a", "/b")))
    assert execution.changes is not None
    assert ([v.name for v in execution.changes.added], execution.changes.removed) == (["x"], ("y",))
    assert (execution.changes.files_added[0].path, execution.changes.files_complete) == ("/a", False)
    assert json.loads(json.dumps(execution.to_json()))["error"]["name"] == "E"


def test_a_result_offers_every_form_that_it_has() -> None:
    chart = json.dumps({"type": "line"}).encode()
    forms = {"text/html": "h", "text/markdown": "m", "text/latex": "l", "image/svg+xml": "s", "application/javascript": "j"}
    parts = [(mime, value.encode(), "text") for mime, value in forms.items()]
    parts += [
        ("image/png", b"\x89PNG\xff", "binary"),
        ("image/jpeg", b"\xff\xd8", "binary"),
        ("application/pdf", b"%PDF", "binary"),
    ]
    parts += [("application/json", b'{"a": 1}', "json"), (CHART, chart, "json"), ("application/x-own", b"\x00\xff", "binary")]
    result = fold(*output(parts)).results[0]
    assert (result.html, result.markdown, result.latex, result.svg, result.javascript) == ("h", "m", "l", "s", "j")
    assert (result.png, result.jpeg, result.pdf) == (b"\x89PNG\xff", b"\xff\xd8", b"%PDF")
    assert (result.json, result.chart, result.text) == ({"a": 1}, {"type": "line"}, None)
    assert result.data["application/x-own"] == b"\x00\xff"
    assert result.to_json()["binary"] == ["image/png", "image/jpeg", "application/pdf", "application/x-own"]


def test_a_picture_of_the_execution_is_the_main_results_or_else_the_first_shown() -> None:
    def png(data: bytes, **changes: Any) -> list[Data | Message]:
        return output([("image/png", data, "binary")], **changes)

    assert fold(*png(b"1"), *png(b"2", main=True)).png == b"2"
    assert fold(*png(b"1"), *png(b"2"), *text("x", main=True)).png == b"1"
    assert (fold().png, fold().text, fold().main, fold().chart) == (None, None, None, None)


def test_characters_cut_between_two_pieces_are_whole_again() -> None:
    euro = "€".encode()
    assert fold(Data(1, b"a" + euro[:1]), Data(2, b"\xff"), Data(1, euro[1:])).stdout == "a€"
    cut = fold(Data(1, euro[:2]))
    assert cut.stdout == "\ufffd"


def test_an_update_takes_the_place_of_what_it_updates() -> None:
    items = [*text("1", display_id="p"), *text("other"), *text("2", display_id="p", update=True)]
    assert [result.text for result in fold(*items).results] == ["2", "other"]
    assert fold(*text("lost", display_id="nobody", update=True)).results == ()
    assert fold(*text("1", display_id="p", main=True), *text("2", display_id="p", update=True)).text == "2"


def test_a_clear_takes_away_what_came_before_at_once_or_with_the_next_output() -> None:
    now, later = Message({"clear": {"wait": False}}), Message({"clear": {"wait": True}})
    cleared = fold(Data(1, b"a"), *text("1"), now, *text("2"), Data(2, b"e"))
    assert (cleared.stdout, [r.text for r in cleared.results], cleared.stderr) == ("", ["2"], "e")
    assert fold(Data(1, b"a"), later, Data(1, b"b")).stdout == "b"
    assert fold(Data(1, b"a"), later).stdout == "a"
    assert fold(Data(1, b"a"), now, Data(1, b"b"), Data(1, b"c")).stdout == "bc"


def test_the_last_error_is_the_one_that_counts() -> None:
    died = {**ERROR, "kind": "out_of_memory", "name": "OutOfMemory", "state_lost": True, "peak_memory_bytes": 5}
    error = fold(Message({"error": ERROR}), Message({"error": died})).error
    assert error is not None and (error.kind, error.state_lost, error.peak_memory_bytes) == ("out_of_memory", True, 5)
    assert str(error) == "OutOfMemory: v"


def test_json_that_is_none_is_told_when_it_is_asked_for() -> None:
    for junk in (b"{", b"[" * 100_000, b"\xff"):
        result = fold(*output([("application/json", junk, "json")])).results[0]
        with pytest.raises(AgentProtocol):
            _ = result.json


# -- what lies end in


def malformed() -> list[list[Data | Message]]:
    good = [{"mime": "a/b", "size": 1, "kind": "text"}]
    header = {"main": False, "metadata": {}, "display_id": None, "update": False}
    headers: list[dict[str, Any]] = [
        {"parts": None},
        {"parts": [1]},
        {"parts": [{"mime": "a/b", "size": -1, "kind": "text"}]},
        {"parts": [{"mime": "a/b", "size": 2**70, "kind": "text"}]},
        {"parts": [{"mime": "a/b", "size": 2**40, "kind": "text"}]},
        {"parts": [{"mime": "a/b", "size": True, "kind": "text"}]},
        {"parts": [{"mime": "a/b", "size": 1, "kind": "pickle"}]},
        {"parts": [{"mime": "x" * 1000, "size": 1, "kind": "text"}]},
        {"parts": [{"mime": 7, "size": 1, "kind": "text"}]},
        {"parts": [*good, *good]},
        {"parts": [{"mime": f"a/{n}", "size": 0, "kind": "text"} for n in range(300)]},
        {"metadata": None},
        {"metadata": []},
        {"main": "yes"},
        {"update": None},
        {"display_id": 7},
        {"display_id": "x" * 5000},
    ]
    outputs = [[Message({"output": {**header, "parts": good, **wrong}}), Data(3, b"x")] for wrong in headers]
    announced = Message({"output": {**header, "parts": good}})
    orders = [[announced, Data(1, b"x")], [announced, Message(STARTED)], [announced, Data(3, b"xy")], [Data(3, b"x")]]
    errors = [{**ERROR, "kind": "odd"}, {**ERROR, "name": None}, {**ERROR, "traceback": "t"}, {**ERROR, "traceback": [1]}]
    errors += [{**ERROR, "state_lost": 1}, {**ERROR, "peak_memory_bytes": -1}, {}]
    dones = [{**DONE, "truncated": None}, {**DONE, "duration_s": float("nan")}, {**DONE, "duration_s": -1}, {**DONE, "count": "1"}]
    dones += [{**DONE, "execution": "x" * 1000}, {**DONE, "truncated": {"stdout": {"omitted": -1}}}, {**DONE, "changes": 3}]
    dones += [{**DONE, "changes": {"variables": CHANGES["variables"], "files": {}}}]
    dones += [
        {**DONE, "changes": {**CHANGES, "variables": {"added": [{**VARIABLE, "size_bytes": -1}], "changed": [], "removed": []}}}
    ]
    others: list[list[Data | Message]] = [
        [Data(0, b"x")],
        [Data(9, b"x")],
        [Message({})],
        [Message({"started": 1})],
        [Message({"started": {"execution": None}})],
        [Message({"clear": {}})],
        [Message({"surprise": 1})],
    ]
    wrong = [[Message({"error": error})] for error in errors] + [[Message({"done": done})] for done in dones]
    return [*outputs, *orders, *wrong, *others]


@pytest.mark.parametrize("items", malformed(), ids=str)
def test_what_no_agent_sends_is_refused(items: list[Data | Message]) -> None:
    with pytest.raises(AgentProtocol):
        read(Message(STARTED), *items)


def test_a_guest_that_floods_is_stopped_at_the_budget() -> None:
    budget = Budget(output=1000, results=1000)
    piece = Data(1, b"x" * 64_000)
    with pytest.raises(AgentProtocol, match="more"):
        read(*[piece] * (SLACK_BYTES // 64_000 + 2), budget=budget)
    with pytest.raises(AgentProtocol, match="more"):
        read(*text("x" * (SLACK_BYTES + 1001)), budget=budget)
    empty = output([], metadata={"m": "x" * 1000})
    with pytest.raises(AgentProtocol, match="more"):
        read(*empty * (SLACK_BYTES // 1000), budget=budget)


def test_within_the_slack_a_guest_may_add_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_reader, "SLACK_BYTES", 200)
    assert len(read(*text("a note"), budget=Budget(output=0, results=0))) == 1


@pytest.mark.parametrize(
    "events",
    [
        [Stdout("early")],
        [Done("e1", 1, 0.1)],
        [Started("e1", 1), Started("e1", 1)],
        [Started("e1", 1), Done("e2", 1, 0.1)],
        [Started("e1", 1), Done("e1", 1, 0.1), Stderr("late")],
        [Started("e1", 1), Done("e1", 1, 0.1), Done("e1", 1, 0.1)],
    ],
)
def test_an_impossible_order_is_refused(events: list[Event]) -> None:
    folded = Fold()
    with pytest.raises(AgentProtocol):
        for event in events:
            folded.take(event)


def test_folding_needs_no_guest() -> None:
    folded = Fold()
    result = Result({"text/plain": "1"}, main=True)
    error = ExecutionError("exit", "SystemExit", "0")
    for event in (Started("e", None), Output(result), Clear(True), Failure(error), Done("e", None, 1.0, Changes())):
        assert not folded.over
        folded.take(event)
    assert folded.over and folded.execution.main is result and folded.execution.error is error
