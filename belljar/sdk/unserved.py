"""Parts of other clients that this version of Belljar has no counterpart for. Every use says so."""

from __future__ import annotations

from typing import NoReturn

from belljar.errors import NotSupported
from belljar.sdk.errors import BadRequestError

BUILDING = ("build", "get_build", "build_logs", "build_from_dockerfile", "wait_for_build", "register", "push")


class Unserved(BadRequestError, NotSupported):
    """There is no such thing here."""


class Missing:
    """Stands where a part is missing: it can be named, and nothing of it can be used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, call: str) -> NoReturn:
        if call.startswith("__"):
            raise AttributeError(call)
        raise Unserved(f"this version of Belljar has no {self._name}; {call} cannot be called")


def refuse_builds(call: str) -> NoReturn:
    if call in BUILDING:
        raise Unserved("this version of Belljar builds no templates over HTTP; `belljar template build` does, on its host")
    raise AttributeError(call)


Volume: Missing = Missing("volumes")
