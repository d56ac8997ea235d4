"""What someone sees who came for a preview and cannot have it: a page in a browser, JSON for programs."""

from __future__ import annotations

from html import escape

from starlette.datastructures import Headers
from starlette.responses import Response

from belljar.server.answers import answer
from belljar.server.problems import Problem

TITLES = {
    401: "This preview is private",
    404: "There is no such preview",
    409: "This sandbox is not running",
    410: "This sandbox has ended",
    502: "Nothing answers here yet",
    503: "This preview is busy",
    504: "This sandbox does not answer",
}
HINTS = {
    "unauthorized": "Its owner can give you a link: <code>POST /v1/sandboxes/{id}/preview-token</code> makes one that expires, and "
    "<code>POST /v1/sandboxes/{id}/ports</code> with <code>\"public\": true</code> opens the port to everyone.",
    "port_closed": "Start a server in the sandbox that listens on this port, and load this page again.",
    "wrong_state": "It was paused on purpose. Once it is resumed, load this page again.",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1.5em;color:#222;background:#fff}}
h1{{font-size:1.4em}}code{{background:#eee;padding:.1em .3em;border-radius:3px}}small{{color:#666}}
</style></head><body><h1>{title}</h1><p>{message}</p><p>{hint}</p><p><small>{status} {code}</small></p></body></html>
"""
SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *",
    "X-Content-Type-Options": "nosniff",
}


def wants_html(headers: Headers) -> bool:
    return "text/html" in headers.get("accept", "")


def explain(problem: Problem, headers: Headers) -> Response:
    """The problem, in the form that whoever asked can read."""
    if not wants_html(headers):
        return answer({"error": problem.message, "code": problem.code}, problem.status, {"Cache-Control": "no-store"})
    page = PAGE.format(
        title=TITLES.get(problem.status, "This preview cannot be shown"),
        message=escape(problem.message),
        hint=HINTS.get(problem.code, ""),
        status=problem.status,
        code=escape(problem.code),
    )
    return Response(page, problem.status, SAFE, media_type="text/html; charset=utf-8")
