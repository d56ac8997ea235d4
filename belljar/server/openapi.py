"""The OpenAPI 3.1 document, made from what the routes declare of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from starlette.routing import BaseRoute, Mount

from belljar.errors import BelljarError
from belljar.server.declaring import Call, Passage, Socket, SocketPassage
from belljar.server.operation import Media, Operation
from belljar.server.shapes import Shape, text

PLACE = re.compile(r"{(\w+)(?::\w+)?}")
# What `declaring.py` lets through; a place that takes the rest of the path takes everything.
NAME = r"^[^/\\\u0000-\u001f\u007f]+$"
PLACES = {
    "id": "Id of a sandbox.",
    "session": "Id of a code context.",
    "context": "Id of a code context.",
    "process": "Id of a process.",
    "name": "A name.",
    "prefix": "The public beginning of a token.",
    "port": "A port of the guest.",
    "rest": "What follows, passed on as it is.",
}
TITLES = {"pandastack": "PandaStack", "sandbase": "SandBase", "own": "Belljar", "previews": "Previews", "": "Server"}
ABOUT = (
    "Two wire formats that published clients speak, and Belljar's own calls beside them. A token comes as `Authorization: Bearer`, "
    "as `X-API-Key` or as `?access_token=`. A field of a body that is not named here is refused, a parameter of a query that is "
    "not named here is ignored, and an optional field that is null counts as absent."
)


Found = tuple[str, Call | Socket, Shape]


def described(routes: Sequence[BaseRoute], prefix: str = "", problem: Shape | None = None) -> Iterator[Found]:
    """Every declared route: its whole path, itself, and the shape of its errors."""
    for route in routes:
        if isinstance(route, Mount):
            inner = getattr(route.app, "state", None)
            yield from described(route.routes, prefix + route.path, getattr(inner, "error_shape", problem))
        elif isinstance(route, Call | Socket):
            yield prefix + route.path, route, problem or {}


def undescribed(routes: Sequence[BaseRoute], prefix: str = "") -> list[str]:
    """Paths of routes that declare nothing."""
    found = []
    for route in routes:
        if isinstance(route, Mount):
            found += undescribed(route.routes, prefix + route.path)
        elif not isinstance(route, Call | Socket | Passage | SocketPassage):
            found.append(prefix + getattr(route, "path", repr(route)))
    return found


def document(routes: Sequence[BaseRoute], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    names: dict[str, Shape] = {}
    problems: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for path, route, problem in described(routes):
        operation = route.operation
        entry = _operation(operation, route.endpoint)
        if entry["operationId"] in seen:  # one handler under two paths
            entry["operationId"] += "_" + re.sub(r"\W", "_", PLACE.sub("", path)).strip("_")
        seen.add(entry["operationId"])
        entry["responses"] |= {status: _refer(status, one, problems) for status, one in _problems(operation, problem).items()}
        paths.setdefault(PLACE.sub(r"{\1}", path), {})[operation.method.lower()] = _hoist(entry, names)
    problems = {name: _hoist(one, names) for name, one in problems.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Belljar", "version": version, "description": ABOUT},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(names.items())),
            "responses": dict(sorted(problems.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token: `pds_` and 32 hex digits."},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "parameter": {"type": "apiKey", "in": "query", "name": "access_token"},
            },
        },
    }


def _operation(operation: Operation, handler: Any) -> dict[str, Any]:
    module = handler.__module__.removeprefix("belljar.server.").split(".")
    dialect, noun = ("", module[0]) if len(module) == 1 else (module[0], module[-1])
    entry: dict[str, Any] = {
        "operationId": "_".join(filter(None, (dialect, noun, handler.__name__))),
        "summary": operation.summary,
        "tags": [TITLES[dialect] + (f": {noun}" if dialect else "")],
        "parameters": list(_parameters(operation)),
        "responses": {str(operation.status): _answer(operation)},
        "security": [] if operation.public else [{"bearer": []}, {"key": []}, {"parameter": []}],
    }
    if operation.about:
        entry["description"] = operation.about
    if operation.body is not None:
        entry["requestBody"] = _body(operation.body)
    if operation.socket:
        entry["x-websocket"] = True
    return entry


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for place in PLACE.findall(operation.path):
        shape = operation.places.get(place) or text(PLACES.get(place, ""))
        if shape["type"] == "string" and f"{{{place}:path}}" not in operation.path:
            shape = {**shape, "pattern": NAME}
        yield {"name": place, "in": "path", "required": True, **_split(shape)}
    for name, shape in operation.query["properties"].items():
        needed = name in operation.query.get("required", ())
        shown = shape if needed else _given(shape)
        yield {"name": name, "in": "query", "required": needed, **_split(shown)}


def _given(shape: Shape) -> Shape:
    """An optional parameter is left out, never null; and one without a value is one that was left out."""
    if "anyOf" in shape:
        return next(one for one in shape["anyOf"] if one.get("type") != "null")
    kinds = [kind for kind in shape["type"] if kind != "null"]
    shown = {**shape, "type": kinds[0]}
    shown.pop("minLength", None)
    if "pattern" in shape:
        shown["pattern"] = f"{shape['pattern']}|^$"
    if "enum" in shape:
        shown["enum"] = [word for word in shape["enum"] if word not in (None, "")] + [""]
    return shown


def _split(shape: Shape) -> dict[str, Any]:
    """A parameter says what it is about beside its shape."""
    inner = {name: value for name, value in shape.items() if name != "description"}
    return {"schema": inner, **({"description": shape["description"]} if "description" in shape else {})}


def _body(body: Shape | Media) -> dict[str, Any]:
    if isinstance(body, Media):
        return {"description": body.about, "content": {body.type: {"schema": body.shape}}}
    return {"required": "required" in body, "content": {"application/json": {"schema": body}}}


def _answer(operation: Operation) -> dict[str, Any]:
    about = " ".join(media.about for media in operation.gives if media.about) or HTTPStatus(operation.status).phrase
    answer: dict[str, Any] = {"description": about}
    if operation.gives:
        answer["content"] = {media.type: {"schema": media.shape} for media in operation.gives}
    if operation.headers:
        answer["headers"] = {name: {"description": said, "schema": {"type": "string"}} for name, said in operation.headers.items()}
    return answer


def _problems(operation: Operation, problem: Shape) -> dict[str, Any]:
    by_status: dict[int, list[type[BelljarError]]] = {}
    for error in operation.all_errors:
        by_status.setdefault(error.status, []).append(error)
    answers = {}
    for status, errors in sorted(by_status.items()):
        about = "\n".join(f"- `{error.code}`: {(error.__doc__ or '').strip()}" for error in errors)
        answers[str(status)] = {"description": about, "content": {"application/json": {"schema": _narrow(problem, errors)}}}
    if operation.socket:
        answers["426"] = {"description": "Not a WebSocket.", "content": {"application/json": {"schema": problem}}}
    return answers


def _refer(status: str, problem: dict[str, Any], known: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Many routes share their errors: each is described once."""
    for number in range(len(known) + 1):
        name = f"Problem{status}" + (f"_{number}" if number else "")
        if known.setdefault(name, problem) == problem:
            break
    return {"$ref": f"#/components/responses/{name}"}


def _narrow(problem: Shape, errors: list[type[BelljarError]]) -> Shape:
    """The dialect's error, with the codes that this status has; a dialect that repeats the status has no codes."""
    if problem.get("properties", {}).get("code", {}).get("type") != "string":
        return problem
    codes = {"type": "string", "enum": sorted(error.code for error in errors)}
    narrowed = {**problem, "properties": {**problem["properties"], "code": codes}}
    narrowed.pop("x-name", None)
    return narrowed


def _hoist(value: Any, names: dict[str, Shape]) -> Any:
    """Shapes with a name are described once, and referred to."""
    if isinstance(value, list):
        return [_hoist(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    if name := value.get("x-name"):
        names[name] = _hoist({key: item for key, item in value.items() if key != "x-name"}, names)
        return {"$ref": f"#/components/schemas/{name}"}
    return {key: _hoist(item, names) for key, item in value.items()}
