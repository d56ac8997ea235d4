"""Previews and marks: bounded, and without a step of the user's code."""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest

from belljar.kernel.previews import MAX_PREVIEW, preview, summarize
from belljar.kernel.variables import VariablesBefore, find_variables


class Hostile:
    """Whoever looks closely is punished."""

    def __repr__(self) -> str:
        raise AssertionError("looked")

    __len__ = __iter__ = __getattr__ = __eq__ = __hash__ = __sizeof__ = __bool__ = __repr__  # type: ignore[assignment,misc]

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise AssertionError("looked")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        ([1, "a", None], "[1, 'a', None]"),
        ((1,), "(1,)"),
        ({"k": {2}}, "{'k': {2}}"),
        ([[[[[]]]]], "[[[[...]]]]"),
        (deque([1]), "deque([1])"),
        (defaultdict(int, {1: 2}), "defaultdict({1: 2})"),
        (range(3), "range(0, 3)"),
        (10**1000, "<int of 3322 bits>"),
        (PurePosixPath("a"), "PurePosixPath('a')"),
        (int, "<class int>"),
        (list(range(99)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...]"),
    ],
)
def test_known_types_are_shown(value: Any, text: str) -> None:
    assert preview(value) == text


def test_a_preview_is_short_whatever_it_is_of() -> None:
    for value in ("x" * 10**6, ["y" * 1000] * 1000, {"z" * 1000: "z" * 1000}, b"\xff" * 10**6, "\ud800" * 1000):
        assert len(preview(value)) <= MAX_PREVIEW


def test_the_users_code_is_not_run() -> None:
    hostile = Hostile()
    for value in (hostile, [hostile], {1: hostile}, (hostile,)):
        assert "Hostile" in summarize(value).preview
    variables = find_variables({"h": hostile}, {})
    assert VariablesBefore(variables).compare(variables) == {"added": [], "changed": [], "removed": []}


def test_arrays_are_described_and_their_changes_seen() -> None:
    array = np.arange(6).reshape(2, 3)
    before = summarize(array)
    assert before[:3] == ("(2, 3)", 48, "int64 [0, 1, 2, 3, 4, 5]")
    assert summarize(array).mark == before.mark
    array[1, 2] = 7
    assert summarize(array).mark != before.mark
    assert summarize(np.zeros(10**6)).preview.endswith("...")
    objects = np.empty(1, dtype=object)
    objects[0] = Hostile()
    assert summarize(objects).preview == "array of object"


def test_frames_are_described_and_their_changes_seen() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    before = summarize(frame)
    assert before.shape == "(2, 2)" and before.preview.startswith("2 rows; 'a': int64, 'b': ")
    frame.loc[0, "b"] = "z"
    assert summarize(frame).mark != before.mark
    assert summarize(frame["a"]).preview == "int64 [1, 2]"


def test_changes_inside_a_value_are_seen() -> None:
    class Thing:
        pass

    thing, nested = Thing(), {"a": [1]}
    before = VariablesBefore({"thing": thing, "nested": nested, "same": 1})
    thing.x = 1  # type: ignore[attr-defined]
    nested["a"].append(2)
    changed = before.compare({"thing": thing, "nested": nested, "same": 1})["changed"]
    assert [item["name"] for item in changed] == ["nested", "thing"]
