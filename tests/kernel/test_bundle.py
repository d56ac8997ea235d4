"""MIME bundles as parts and bytes."""

from __future__ import annotations

import json

from belljar.kernel.bundle import pack, render_json


def test_parts_tell_where_their_bytes_end_and_what_they_are() -> None:
    parts, blob = pack({"text/plain": "é", "image/png": b"\x89", "application/json": {"a": 1}, "text/html": None})
    assert parts == [
        {"mime": "text/plain", "size": 2, "kind": "text"},
        {"mime": "image/png", "size": 1, "kind": "binary"},
        {"mime": "application/json", "size": 8, "kind": "json"},
    ]
    assert blob == "é".encode() + b"\x89" + b'{"a": 1}'


def test_base64_of_what_is_binary_is_decoded() -> None:
    parts, blob = pack({"image/gif": "R0lGODdh\n", "image/svg+xml": b"<svg/>"})
    assert [part["kind"] for part in parts] == ["binary", "text"] and blob == b"GIF87a<svg/>"


def test_json_is_always_valid() -> None:
    nested: list[object] = []
    nested.append(nested)
    for value in (float("nan"), [float("inf")], {1: {2, 3}}, {"o": object()}, nested, "text"):
        json.loads(render_json(value), parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name)))
