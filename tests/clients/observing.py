"""Watches the calls of the published Python client, and of SandBase's routes, without changing what they do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pandastack
import requests
from starlette.routing import Route

from belljar.server.sandbase.dialect import NOUNS
from tests.clients.book import BOOK, Ending

PYTHON, SANDBASE = "pandastack", "sandbase"
# Not calls to a server: one makes values, the other runs a container tool on the caller's own machine first.
LEFT_OUT = {"from_dict", "push", "registry_ref"}


def _places() -> list[tuple[str, Any]]:
    """Where users find calls, by the names they use for them."""
    client = pandastack.Client(api_key="none", api_url="http://localhost")
    parts = [(f"client.{name}", type(part)) for name, part in vars(client).items() if _of_the_client(type(part))]
    inside = [("sandbox.filesystem", pandastack.SandboxFilesystem), ("sandbox.commands", pandastack.SandboxCommands)]
    modules = [("pandastack.templates", pandastack.templates), ("pandastack.tokens", pandastack.tokens)]
    whole = [("client", pandastack.Client), ("sandbox", pandastack.Sandbox), ("context", pandastack.CodeContext)]
    return [*whole, *inside, *parts, *modules]


def _of_the_client(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "pandastack"


def _calls() -> Iterator[tuple[str, Any, str]]:
    for place, owner in _places():
        for name, value in sorted(vars(owner).items()):
            function = value.__func__ if isinstance(value, classmethod) else value
            if not inspect.isfunction(function) or name in LEFT_OUT or function.__module__.split(".")[0] != "pandastack":
                continue
            if inspect.ismodule(owner) and function.__module__ != owner.__name__:
                continue
            if name == "__exit__":
                yield f"with {place}", owner, name
            elif isinstance(value, classmethod):
                yield f"{place.title()}.{name}", owner, name
            elif not name.startswith("_"):
                yield f"{place}.{name}", owner, name
    yield "pandastack.explore", pandastack, "explore"


def python_surface() -> list[str]:
    """Every public call that the client has."""
    return [call for call, _, _ in _calls()]


def sandbase_surface() -> list[str]:
    """SandBase has no client to ask for its calls: they are the routes of its dialect."""
    return [f"{method} {route.path}" for route in _routes() for method in sorted(route.methods or ()) if method != "HEAD"]


def _routes() -> list[Route]:
    return [route for noun in NOUNS for route in noun.ROUTES]


def observe() -> None:
    for call, owner, name in list(_calls()):
        value = vars(owner)[name]
        watched = _watched(call, value.__func__ if isinstance(value, classmethod) else value)
        setattr(owner, name, classmethod(watched) if isinstance(value, classmethod) else watched)
    _observe_requests()


def _watched(call: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*given: Any, **named: Any) -> Any:
        try:
            result = function(*given, **named)
        except Exception as problem:
            BOOK.note(PYTHON, call, _ending(problem))
            raise
        if inspect.isgenerator(result):
            return _watched_items(call, result)
        BOOK.note(PYTHON, call, Ending())
        return result

    return watched


def _watched_items(call: str, items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except Exception as problem:
        BOOK.note(PYTHON, call, _ending(problem))
        raise
    BOOK.note(PYTHON, call, Ending())


def _ending(problem: Exception) -> Ending:
    return Ending(type(problem).__name__, str(problem))


def _observe_requests() -> None:
    """What counts for SandBase is which of its routes was asked for, and answered."""
    original = requests.Session.request

    @functools.wraps(original)
    def request(self: requests.Session, method: str, url: str, *given: Any, **named: Any) -> requests.Response:
        answer = original(self, method, url, *given, **named)
        for route in _routes():
            if method.upper() in (route.methods or ()) and route.path_regex.match(urlsplit(url).path):
                refused = answer.status_code >= 400
                BOOK.note(SANDBASE, f"{method.upper()} {route.path}", Ending(f"HTTP {answer.status_code}") if refused else Ending())
        return answer

    requests.Session.request = request  # type: ignore[method-assign]
