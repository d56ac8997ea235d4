"""The API's description as one HTML page: no script, nothing from elsewhere, found by the browser's own search."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; --code: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; display: grid; grid-template-columns: 17rem minmax(0, 60rem); gap: 2rem; }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 1rem; box-sizing: border-box;
  border-right: 1px solid var(--line); }
nav a { display: block; text-decoration: none; color: inherit; font-size: 13px; padding: 1px 0; }
main { padding: 1rem 1rem 6rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 { margin: 2.5rem 0 .3rem; font-size: 1rem; }
h4 { margin: 1rem 0 .3rem; font-size: .85rem; color: var(--dim); }
code, pre { font: 13px/1.45 ui-monospace, monospace; background: var(--code); border-radius: 4px; }
code { padding: 1px 4px; } pre { padding: .7rem; overflow: auto; } pre code { background: none; padding: 0; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: 3px 12px 3px 0;
  border-bottom: 1px solid var(--line); font-size: 13.5px; } th { color: var(--dim); font-weight: normal; }
.method { display: inline-block; min-width: 3.6rem; font-weight: 700; font-size: .8em; }
.dim { color: var(--dim); } details { margin: .4rem 0; } summary { cursor: pointer; font-size: 13.5px; }
@media (max-width: 60rem) { body { display: block; } nav { position: static; height: auto; border: 0; } }
"""

# Name, place, whether it is needed, shape, and what it is about.
Row = tuple[str, str, bool, dict[str, Any], str]


def render_page(document: dict[str, Any]) -> str:
    """The whole page."""
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    info = document["info"]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(info['title'])} API</title><style>{STYLE}</style></head><body><nav>",
            *(_menu(name, found) for name, found in groups.items()),
            '<h4>Shapes</h4><a href="#shapes">all of them</a></nav><main>',
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{_words(info['description'])}</p>",
            '<p>The same for programs: <a href="openapi.json">openapi.json</a>. In the examples <code>$BELLJAR</code> is the '
            "server's address and <code>$TOKEN</code> a token.</p>",
            *(_group(document, name, found) for name, found in groups.items()),
            '<h2 id="shapes">Shapes</h2>',
            *(_named(name, shape) for name, shape in document["components"]["schemas"].items()),
            "</main></body></html>",
        ]
    )


def _menu(name: str, found: list[tuple[str, str, dict[str, Any]]]) -> str:
    links = (f'<a href="#{escape(operation["operationId"])}">{escape(operation["summary"])}</a>' for _, _, operation in found)
    return f"<h4>{escape(name)}</h4>{''.join(links)}"


def _group(document: dict[str, Any], name: str, found: list[tuple[str, str, dict[str, Any]]]) -> str:
    return f"<h2>{escape(name)}</h2>" + "".join(_operation(document, *one) for one in found)


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    kind = "WS" if operation.get("x-websocket") else method
    parts = [
        f'<h3 id="{escape(operation["operationId"])}">{escape(operation["summary"])}</h3>',
        f'<p><span class="method">{kind}</span> <code>{escape(path)}</code></p>',
    ]
    if "description" in operation:
        parts.append(f"<p>{_words(operation['description'])}</p>")
    if operation["parameters"]:
        parts.append(_table("Parameters", [_parameter(one) for one in operation["parameters"]]))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<h4>Body: {escape(media)}</h4>{_shape(content['schema'])}")
        parts.append(f"<p>{_words(operation['requestBody'].get('description', ''))}</p>")
    parts += [_answer(status, _resolve(one, document)) for status, one in operation["responses"].items()]
    parts.append(f"<pre><code>{escape(curl(method, path, operation))}</code></pre>")
    return "".join(parts)


def _parameter(one: dict[str, Any]) -> Row:
    return one["name"], one["in"], one["required"], one["schema"], one.get("description", "")


def _resolve(answer: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
    return found


def _answer(status: str, answer: dict[str, Any]) -> str:
    content = "".join(
        f"<p class='dim'>{escape(media)}</p>{_shape(one['schema'])}" for media, one in answer.get("content", {}).items()
    )
    if int(status) < 400:
        return f"<h4>Answer {status}</h4><p>{_words(answer['description'])}</p>{content}"
    return f"<details><summary>{status}</summary><p>{_words(answer['description'])}</p></details>"


def _named(name: str, shape: dict[str, Any]) -> str:
    return f'<h3 id="shape-{escape(name)}">{escape(name)}</h3><p>{_words(shape.get("description", ""))}</p>{_shape(shape)}'


def _shape(shape: dict[str, Any]) -> str:
    """An object as a table of its fields; anything else in a word."""
    if "x-events" in shape:
        rows = [(name, "event", True, data, data.get("description", "")) for name, data in shape["x-events"].items()]
        return _table("Events", rows)
    if "properties" not in shape:
        return f"<p>{_kind(shape)}</p>"
    needed = shape.get("required", [])
    rows = [(name, "", name in needed, one, one.get("description", "")) for name, one in shape["properties"].items()]
    return _table("", rows)


def _table(title: str, rows: list[Row]) -> str:
    lines = (
        f"<tr><td><code>{escape(name)}</code>{'' if needed else ' <span class=dim>optional</span>'}</td>"
        f"<td class=dim>{escape(place)}</td><td>{_kind(shape)}</td><td>{_words(about)}</td></tr>"
        for name, place, needed, shape, about in rows
    )
    return (f"<h4>{title}</h4>" if title else "") + f"<table>{''.join(lines)}</table>"


def _kind(shape: dict[str, Any]) -> str:
    if "$ref" in shape:
        name = escape(shape["$ref"].rpartition("/")[2])
        return f'<a href="#shape-{name}">{name}</a>'
    if "anyOf" in shape:
        return " or ".join(_kind(one) for one in shape["anyOf"])
    return ", ".join(_facts(shape)) or "anything"


def _facts(shape: dict[str, Any]) -> Iterator[str]:
    kinds = shape.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds:
        if kind == "array":
            yield f"list of {_kind(shape['items'])}"
        elif kind == "object" and "properties" in shape:
            yield "object {" + ", ".join(f"{escape(name)}: {_kind(one)}" for name, one in shape["properties"].items()) + "}"
        elif kind == "object" and isinstance(shape.get("additionalProperties"), dict):
            yield f"object of {_kind(shape['additionalProperties'])}"
        elif kind != "null":
            yield f"{kind} {shape.get('format', '')}".strip()
    if "null" in kinds:
        yield "null" if len(kinds) == 1 else "or null"
    if "enum" in shape:
        yield "one of " + " ".join(f"<code>{escape(str(word))}</code>" for word in shape["enum"] if word not in (None, ""))
    if "minimum" in shape and shape["maximum"] < 1e12:
        yield f"{shape['minimum']:g} to {shape['maximum']:g}"
    if "default" in shape:
        yield f"default <code>{escape(json.dumps(shape['default']))}</code>"


def curl(method: str, path: str, operation: dict[str, Any]) -> str:
    """A line that can be pasted into a shell."""
    needed = [one for one in operation["parameters"] if one["in"] == "query" and one["required"]]
    query = "&".join(f"{one['name']}={_example(one['schema'])}" for one in needed)
    address = re.sub(r"{(\w+)}", lambda found: f"${found.group(1).upper()}", path)
    words = ["curl", "-N" if "text/event-stream" in json.dumps(operation["responses"]) else "-sS"]
    words += [] if method == "GET" else ["-X", method]
    words += ["-H", '"Authorization: Bearer $TOKEN"'] if operation["security"] else []
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        if media != "application/json":
            words += ["--data-binary", "@FILE"]
        elif example := _example(content["schema"]):
            words += ["-d", "'" + json.dumps(example).replace("'", "'\\''") + "'"]
    if operation.get("x-websocket"):
        return f'websocat -H "Authorization: Bearer $TOKEN" "$BELLJAR_WS{address}{"?" + query if query else ""}"'
    return " ".join([*words, f'"$BELLJAR{address}{"?" + query if query else ""}"'])


def _example(shape: dict[str, Any]) -> Any:
    if "examples" in shape:
        return shape["examples"][0]
    if "default" in shape:
        return shape["default"]
    if "enum" in shape:
        return shape["enum"][0]
    if "anyOf" in shape:
        return _example(shape["anyOf"][0])
    kind = shape["type"] if isinstance(shape.get("type"), str) else next(iter(shape.get("type", [])), "")
    if kind == "object":
        needed = shape.get("required", [])
        return {name: _example(one) for name, one in shape.get("properties", {}).items() if name in needed or "examples" in one}
    return {"integer": shape.get("minimum", 1), "number": 1, "boolean": True, "array": [], "string": "text"}.get(kind)


def _words(said: str) -> str:
    """Text with `code` in it, and lines that begin with a dash as they are."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(said))
    return marked.replace("\n", "<br>")
