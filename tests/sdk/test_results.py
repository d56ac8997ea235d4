"""Events of a cell add up to what a notebook would show; results give their forms."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from belljar.sdk.cells import Clear, Event, Failure, Fold, Started, Stdout, parse_event
from belljar.sdk.errors import Lost
from belljar.sdk.results import Execution, ExecutionError, Result

PNG = b"\x89PNG not really"
DONE = ("done", {"id": "c-1", "count": 3, "duration_s": 1.5, "changes": None, "truncated": {"stdout": None}})


def shown(text: str, *, main: bool = False, display_id: str | None = None, update: bool = False) -> tuple[str, dict[str, Any]]:
    fields = {"data": {"text/plain": text}, "binary": [], "main": main, "display_id": display_id, "update": update}
    return "result", fields


def fold(*events: tuple[str, dict[str, Any]]) -> Execution:
    adding = Fold()
    for name, fields in (("started", {"id": "c-1", "count": 3}), *events, DONE):
        event = parse_event(name, fields)
        assert event is not None, name
        adding.take(event)
    return adding.execution


def test_events_add_up() -> None:
    execution = fold(
        ("stdout", {"text": "a"}), ("stderr", {"text": "e"}), shown("first"), ("stdout", {"text": "b"}), shown("value", main=True)
    )
    assert (execution.stdout, execution.stderr, execution.exit_code) == ("ab", "e", 0)
    assert [result.text for result in execution.results] == ["first", "value"]
    assert execution.text == "value" and execution.main is execution.results[1]
    assert (execution.id, execution.count, execution.duration_ms) == ("c-1", 3, 1500)
    assert execution.logs == {"stdout": "ab", "stderr": "e"}


def test_an_update_takes_the_place_of_what_it_updates() -> None:
    execution = fold(shown("1", display_id="d"), shown("x"), shown("2", display_id="d", update=True))
    assert [result.text for result in execution.results] == ["2", "x"]
    assert fold(shown("1", display_id="other", update=True)).results == []


def test_a_clear_takes_away_what_came_before() -> None:
    at_once = fold(("stdout", {"text": "gone"}), shown("gone"), ("clear", {"wait": False}))
    assert (at_once.stdout, at_once.results) == ("", [])
    waits = fold(("stdout", {"text": "stays"}), ("clear", {"wait": True}))
    assert waits.stdout == "stays"
    replaced = fold(("stdout", {"text": "gone"}), ("clear", {"wait": True}), ("stdout", {"text": "new"}))
    assert replaced.stdout == "new"


def test_an_error_is_text_with_parts() -> None:
    fields = {"kind": "exception", "name": "ValueError", "value": "no", "traceback": ["line 1", "ValueError: no"]}
    error = fold(("error", fields)).error
    assert isinstance(error, str) and error == "line 1\nValueError: no"
    assert (error.kind, error.name, error.value, error.state_lost) == ("exception", "ValueError", "no", False)
    assert str(ExecutionError.from_dict({"kind": "died", "name": "Died", "value": "signal 9"})) == "Died: signal 9"


def test_the_last_error_counts() -> None:
    both = fold(("error", {"kind": "exception", "name": "A"}), ("error", {"kind": "died", "name": "B", "state_lost": True}))
    assert both.error is not None and both.error.kind == "died" and both.error.state_lost and both.exit_code == 1


def test_a_stream_that_breaks_off_has_no_execution() -> None:
    adding = Fold()
    events: list[Event] = [Started("c-1", 1), Stdout("a"), Clear(True), Failure(ExecutionError("x"))]
    for event in events:
        adding.take(event)
    with pytest.raises(Lost, match="attach"):
        _ = adding.execution


def test_unknown_events_are_for_newer_clients() -> None:
    assert parse_event("confetti", {}) is None


def test_pictures_come_as_base64_and_as_bytes(tmp_path: Path) -> None:
    encoded = base64.b64encode(PNG).decode()
    result = Result.from_dict({"data": {"image/png": encoded, "text/plain": "<Figure>"}, "binary": ["image/png"]})
    assert (result.png, result.chart, result.image, result.mime) == (encoded, encoded, PNG, "image/png")
    assert result.save(tmp_path / "a.png").read_bytes() == PNG
    assert result.bytes("text/plain") == b"<Figure>"
    execution = Execution.from_dict(
        {"results": [{"data": {"text/plain": "t"}, "main": True}, {"data": {"image/png": encoded}, "binary": ["image/png"]}]}
    )
    assert (execution.text, execution.png, execution.image) == ("t", encoded, PNG)
    broken = Result({"image/png": "!!"}, binary=("image/png",))
    with pytest.raises(Lost, match="base64"):
        broken.bytes("image/png")


def test_json_is_parsed_where_it_is_json() -> None:
    assert Result({"application/json": '{"a": 1}'}).json == {"a": 1}
    assert Result({"application/json": "{"}).json == "{"
    assert Result({}).json is None and Result({}).chart_data is None


def test_a_notebook_shows_a_result_and_a_prompt_only_its_beginning() -> None:
    result = Result({"text/plain": "<Figure>", "image/png": "A" * 100_000, "application/json": "[1]"}, main=True)
    data, _ = result._repr_mimebundle_()
    assert data == {"text/plain": "<Figure>", "image/png": "A" * 100_000, "application/json": [1]}
    assert len(repr(Execution(results=[result]))) < 600 and "'<Figure>'" in repr(result) and "100000 characters" in repr(result)
