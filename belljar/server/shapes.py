"""The shapes of what goes in and out, in a few words of JSON Schema, and the check of a request against its shape.

One declaration does both jobs: it is what `/openapi.json` shows, and what a request is judged by before a handler sees it. So the
description cannot drift from what is accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from belljar.errors import InvalidInput

Shape = dict[str, Any]

# Nothing that is named by a client may hold a NUL: neither paths nor arguments can.
NO_NUL = r"^[^\u0000]*$"
# Marks text that may stand for bytes that are no UTF-8, as names of files can.
BYTES = "x-bytes"
FLAG_WORDS = ("1", "true", "0", "false", "")
# Above it a JSON number is no longer exact for every reader.
MAX_NUMBER = 1e12


def text(about: str = "", *, empty: bool = False, most: int | None = None, nul: bool = False, **more: Any) -> Shape:
    """Text; not empty and without NUL unless allowed. `most` is its length in characters. `default`, `examples` go through."""
    shape: Shape = {"type": "string", **_about(about), **more}
    if not empty:
        shape["minLength"] = 1
    if most is not None:
        shape["maxLength"] = most
    if not nul and "pattern" not in more:
        shape["pattern"] = NO_NUL
    return shape


def guest_text(about: str = "", **more: Any) -> Shape:
    """Text for the guest's system, which knows only bytes: one that is no UTF-8 comes and goes as U+DC80 to U+DCFF."""
    return text(about, **{BYTES: True}, **more)


def choice(words: Sequence[str], about: str = "", **more: Any) -> Shape:
    return {"type": "string", "enum": list(words), **_about(about), **more}


def number(about: str = "", low: float = 0, high: float = MAX_NUMBER, **more: Any) -> Shape:
    """Seconds and the like; not negative unless `low` says so."""
    return {"type": "number", "minimum": low, "maximum": high, **_about(about), **more}


def whole(about: str = "", low: int = 0, high: int = 2**53, **more: Any) -> Shape:
    return {"type": "integer", "minimum": low, "maximum": high, **_about(about), **more}


def flag(about: str = "", **more: Any) -> Shape:
    """True or false in a JSON body."""
    return {"type": "boolean", **_about(about), **more}


def switch(about: str = "") -> Shape:
    """True or false in a query: `1` or `true`, `0` or `false`."""
    return {"type": "string", "enum": list(FLAG_WORDS), **_about(about)}


def labels(about: str = "", *, most: int = 64) -> Shape:
    """Text to text."""
    names = {"minLength": 1, "maxLength": 256, "pattern": NO_NUL}
    values = {"type": "string", "maxLength": 4096, "pattern": NO_NUL}
    return {"type": "object", "additionalProperties": values, "propertyNames": names, "maxProperties": most, **_about(about)}


def environment(about: str = "Environment variables.") -> Shape:
    """Names and values as Linux takes them: a name has no `=`, and both together at most 128 KiB."""
    names = {"minLength": 1, "maxLength": 4096, "pattern": r"^[^=\u0000]*$"}
    values = {"type": "string", "maxLength": 120_000, "pattern": NO_NUL, BYTES: True}
    return {"type": "object", "additionalProperties": values, "propertyNames": names, **_about(about)}


def listing(of: Shape, about: str = "", *, least: int = 0, most: int | None = None) -> Shape:
    shape: Shape = {"type": "array", "items": of, **_about(about)}
    if least:
        shape["minItems"] = least
    if most is not None:
        shape["maxItems"] = most
    return shape


def record(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, about: str = "") -> Shape:
    """An object of a request. An optional field that is null counts as absent; a field that is not named here is refused."""
    fields = {**needed, **{name: maybe(shape) for name, shape in (optional or {}).items()}}
    shape: Shape = {"type": "object", "properties": fields, "additionalProperties": False, **_about(about)}
    if needed:
        shape["required"] = list(needed)
    return shape


def answered(fields: Mapping[str, Shape], about: str = "", name: str = "") -> Shape:
    """An object of an answer: all of its fields are always there. With a name it is described once, and referred to."""
    shape: Shape = {"type": "object", "properties": dict(fields), "required": list(fields), "additionalProperties": False}
    return {**shape, **_about(about), **({"x-name": name} if name else {})}


def maybe(shape: Shape) -> Shape:
    """The same, or null."""
    if "null" in shape.get("type", ()):
        return shape
    if "type" not in shape or "x-name" in shape:
        return {"anyOf": [shape, {"type": "null"}]}
    changed = {**shape, "type": [*_types(shape), "null"]}
    if "enum" in shape:
        changed["enum"] = [*shape["enum"], None]
    return changed


def either(*shapes: Shape, about: str = "") -> Shape:
    return {"anyOf": list(shapes), **_about(about)}


ANYTHING: Shape = {}
TIME: Shape = {"type": "string", "format": "date-time"}


def _about(about: str) -> Shape:
    return {"description": about} if about else {}


def _types(shape: Shape) -> list[str]:
    kind = shape["type"]
    return [kind] if isinstance(kind, str) else list(kind)


# -- the check ----------------------------------------------------------------------------------------------------------------


def check_record(values: Mapping[str, Any], shape: Shape, within: str = "") -> dict[str, Any]:
    """The fields of an object, as its shape wants them. Whatever is wrong is InvalidInput and says which field."""
    known, checked = shape["properties"], {}
    for name in values.keys() - known.keys():
        raise InvalidInput(f"there is no field {within + name[:80]!r} here; known are {', '.join(sorted(known)) or 'none'}")
    for name, value in values.items():
        if value is not None or name in shape.get("required", ()):
            checked[name] = check(value, known[name], within + name)
    for name in shape.get("required", ()):
        if name not in values:
            raise InvalidInput(f"{within}{name} required")
    return checked


def check(value: Any, shape: Shape, name: str) -> Any:
    """The value as its shape wants it; a float without a fraction is a whole number."""
    if "anyOf" in shape:
        return _check_any(value, shape["anyOf"], name)
    if "type" not in shape or (value is None and "null" in _types(shape)):
        return value
    kind = next(kind for kind in _types(shape) if kind != "null")
    if value is None or (kind == "string" and value == "" and shape.get("minLength")):
        raise InvalidInput(f"{name} required")
    return _CHECKS[kind](value, shape, name)


def _check_any(value: Any, shapes: Sequence[Shape], name: str) -> Any:
    for shape in shapes:
        if shape.get("type") == "null" and value is not None:
            continue  # it has nothing to say about what is wrong with a value
        try:
            return check(value, shape, name)
        except InvalidInput as problem:
            last = problem
    raise last


def _check_text(value: Any, shape: Shape, name: str) -> str:
    if not isinstance(value, str):
        _wrong(name, "text", value)
    if "enum" in shape and value not in shape["enum"]:
        raise InvalidInput(f"{name} must be one of {', '.join(repr(word) for word in shape['enum'] if word is not None)}")
    if shape.get("pattern") == NO_NUL and "\0" in value:
        raise InvalidInput(f"{name} contains a NUL character")
    try:
        value.encode("utf-8", "surrogateescape" if BYTES in shape else "strict")
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} contains half a surrogate pair, which is no Unicode text") from None
    if "pattern" in shape and not re.search(shape["pattern"].removesuffix("$") + r"\Z", value):
        raise InvalidInput(f"{name} must match {shape['pattern']}")
    if len(value) > shape.get("maxLength", math.inf):
        raise InvalidInput(f"{name} has {len(value)} characters; at most {shape['maxLength']} are possible")
    return value


def _check_number(value: Any, shape: Shape, name: str) -> float:
    low, high = shape["minimum"], shape["maximum"]
    # The comparison also keeps an integer of a thousand digits from overflowing in float().
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        wanted = "a number that is not negative" if (low, high) == (0, MAX_NUMBER) else f"a number from {low:g} to {high:g}"
        _wrong(name, wanted, value)
    return float(value)


def _check_whole(value: Any, shape: Shape, name: str) -> int:
    low, high = shape["minimum"], shape["maximum"]
    exact = (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    if not exact or not low <= value <= high:
        _wrong(name, f"a whole number from {low} to {high}", value)
    return int(value)


def _check_flag(value: Any, shape: Shape, name: str) -> bool:
    if not isinstance(value, bool):
        _wrong(name, "true or false", value)
    return value


def _check_list(value: Any, shape: Shape, name: str) -> list[Any]:
    if not isinstance(value, list):
        _wrong(name, "a list", value)
    least, most = shape.get("minItems", 0), shape.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise InvalidInput(f"{name} must have at {f'least {least}' if len(value) < least else f'most {most}'} items")
    return [check(item, shape["items"], f"{name}[{index}]") for index, item in enumerate(value)]


def _check_object(value: Any, shape: Shape, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _wrong(name, "an object", value)
    if "properties" in shape:
        return check_record(value, shape, f"{name}.")
    if len(value) > shape.get("maxProperties", math.inf):
        raise InvalidInput(f"{name} has {len(value)} entries; at most {shape['maxProperties']} are possible")
    of_names, of_values = {"type": "string", **shape.get("propertyNames", {})}, shape.get("additionalProperties", ANYTHING)
    for key, item in value.items():
        check(key, of_names, f"a name in {name}")
        check(item, of_values, f"{name}.{key[:80]}")
    return value


def _wrong(name: str, wanted: str, value: object) -> NoReturn:
    beyond = isinstance(value, int | float) and not isinstance(value, bool) and "number" in wanted
    raise InvalidInput(f"{name} must be {wanted}" + ("" if beyond else f", not {type(value).__name__}"))


_CHECKS = {
    "string": _check_text,
    "number": _check_number,
    "integer": _check_whole,
    "boolean": _check_flag,
    "array": _check_list,
    "object": _check_object,
}
