"""What a declared shape lets through, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import HTTPConnection, Request

from belljar.errors import InvalidInput
from belljar.server.asking import Fields, query_whole, read_fields, read_query
from belljar.server.operation import QUERY
from belljar.server.shapes import (
    Shape,
    check,
    check_record,
    choice,
    either,
    environment,
    flag,
    guest_text,
    labels,
    listing,
    maybe,
    number,
    record,
    text,
    whole,
)

GOOD: list[tuple[Shape, Any, Any]] = [
    (text(), "x", "x"),
    (text(empty=True), "", ""),
    (text(nul=True), "\0", "\0"),
    (guest_text(), "\udcff", "\udcff"),
    (choice(["a", "b"]), "b", "b"),
    (number(), 0, 0.0),
    (number(low=-1), -0.5, -0.5),
    (whole(), 7, 7),
    (whole(), 7.0, 7),
    (flag(), False, False),
    (labels(), {"a": ""}, {"a": ""}),
    (environment(), {"A": "b=c"}, {"A": "b=c"}),
    (listing(whole(), most=2), [1, 2], [1, 2]),
    (maybe(text()), None, None),
    (maybe(maybe(text())), "x", "x"),
    (maybe(choice(["a"])), None, None),
    (either(text(), whole()), 7, 7),
    (either(text(), whole()), "7", "7"),
    ({"description": "anything"}, [None], [None]),
]
BAD: list[tuple[Shape, Any]] = [
    (text(), ""),
    (text(), None),
    (text(), 7),
    (text(), "a\0b"),
    (text(), "\ud800"),
    (text(), "\udcff"),
    (guest_text(), "\ud800"),
    (text(most=3), "long"),
    (text(pattern="^[a-z]+$"), "A"),
    (text(pattern="^[a-z]+$"), "a\n"),
    (choice(["a"]), "b"),
    (number(), -1),
    (number(), True),
    (number(), float("nan")),
    (number(), 10**400),
    (number(), "7"),
    (whole(high=9), 10),
    (whole(), 7.5),
    (whole(), True),
    (whole(), float("inf")),
    (flag(), 1),
    (labels(), {"a": 1}),
    (labels(), {"": "a"}),
    (labels(), ["a"]),
    (labels(most=1), {"a": "", "b": ""}),
    (environment(), {"A=B": "c"}),
    (listing(text()), "x"),
    (listing(text()), ["x", 7]),
    (listing(text(), least=1), []),
    (listing(text(), most=1), ["x", "y"]),
    (either(text(), whole()), []),
    (maybe(text()), 7),
]


@pytest.mark.parametrize(("shape", "value", "wanted"), GOOD, ids=repr)
def test_what_fits_is_passed_on(shape: Shape, value: Any, wanted: Any) -> None:
    found = check(value, shape, "field")
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(("shape", "value"), BAD, ids=lambda value: repr(value)[:60])
def test_what_does_not_fit_is_refused_by_name(shape: Shape, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(value, shape, "field")
    assert "field" in refused.value.message and len(refused.value.message) < 500


def test_a_record_names_what_is_missing_unknown_or_wrong_inside() -> None:
    shape = record({"cmd": text()}, {"pty": record({"rows": whole(low=1)}), "cwd": text()})
    assert check_record({"cmd": "x", "cwd": None}, shape) == {"cmd": "x"}
    for values, said in (
        ({}, "cmd required"),
        ({"cmd": None}, "cmd required"),
        ({"cmd": "x", "cdw": "y"}, "there is no field 'cdw' here; known are cmd, cwd, pty"),
        ({"cmd": "x", "pty": {"rows": 0}}, "pty.rows must be"),
        ({"cmd": "x", "pty": {"rows": 1, "x": 1}}, "there is no field 'pty.x' here"),
    ):
        with pytest.raises(InvalidInput, match=said):
            check_record(values, shape)


def test_a_handler_cannot_read_what_its_route_does_not_declare() -> None:
    fields = Fields({"cmd": "x"}, record({"cmd": text()})["properties"])
    assert fields.text("cmd") == "x"
    with pytest.raises(LookupError, match="cwd"):
        fields.text("cwd", "/")


def test_a_number_of_a_query_is_read_as_it_was_judged() -> None:
    shape = record({}, {"tail": whole(high=99)})
    for given, wanted in ((b"", 7), (b"tail=0", 0), (b"tail=12", 12), (b"tail=12.0", 12)):
        connection = HTTPConnection({"type": "http", "query_string": given, "headers": []})
        connection.scope[QUERY] = read_query(connection, shape)
        assert query_whole(connection, "tail", 7) == wanted, given
    for given in (b"tail=100", b"tail=-1", b"tail=1.5", b"tail=x", b"tail=", b"tail=nan"):
        with pytest.raises(InvalidInput, match="tail must be a whole number from 0 to 99"):
            read_query(HTTPConnection({"type": "http", "query_string": given, "headers": []}), shape)


async def test_a_handler_cannot_read_a_body_that_its_route_does_not_declare() -> None:
    with pytest.raises(LookupError, match="'/x'"):
        await read_fields(Request({"type": "http", "method": "POST", "path": "/x", "headers": [], "server": ("h", 80)}))
