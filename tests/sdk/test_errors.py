"""Errors are found by Belljar's class and by the name that users of `pandastack` know."""

from __future__ import annotations

import pickle

import pandastack.exceptions
import pytest

import belljar
from belljar import errors
from belljar.sdk.errors import error_in_stream, error_of

TABLE = [
    (401, "unauthorized", belljar.AuthError, errors.Unauthorized),
    (403, "forbidden", belljar.BadRequestError, errors.Forbidden),
    (404, "sandbox_not_found", belljar.NotFoundError, errors.SandboxNotFound),
    (404, "file_not_found", belljar.NotFoundError, errors.FileMissing),
    (422, "command_not_found", belljar.BadRequestError, errors.CommandNotFound),
    (409, "wrong_state", belljar.BadRequestError, errors.WrongState),
    (507, "host_memory_short", belljar.ServerError, errors.HostMemoryShort),
    (504, "deadline_exceeded", belljar.ServerError, errors.DeadlineExceeded),
    (500, "internal", belljar.ServerError, errors.BelljarError),
    (418, "from_the_future", belljar.BadRequestError, errors.InvalidInput),
    (404, None, belljar.NotFoundError, errors.NotFound),
    (502, None, belljar.ServerError, errors.BelljarError),
]


@pytest.mark.parametrize(("status", "code", "published", "own"), TABLE)
def test_an_answer_is_both_kinds_of_error(status: int, code: str | None, published: type[Exception], own: type[Exception]) -> None:
    error = error_of(status, {"error": "why", "code": code}, method="GET", path="/x", retry_after=2.0)
    assert isinstance(error, published) and isinstance(error, own) and isinstance(error, belljar.PandastackError)
    assert (str(error), error.status) == ("why", status)
    assert error.code == (code or own.code)
    assert error.details == {"method": "GET", "path": "/x", "retry_after": 2.0}


def test_every_code_of_the_server_has_its_class() -> None:
    for code, kind in errors.BY_CODE.items():
        error = error_of(kind.status, {"error": "why", "code": code}, method="GET", path="/")
        assert isinstance(error, kind) and (error.code, error.status, error.retry) == (code, kind.status, kind.retry)


def test_messages_are_found_wherever_servers_put_them() -> None:
    for payload, text in [({"message": "m"}, "m"), ({"detail": "d"}, "d"), ("plain", "plain"), ({}, "HTTP 500"), ([1], "HTTP 500")]:
        assert text in str(error_of(500, payload, method="GET", path="/"))
    assert len(str(error_of(500, "x" * 10**6, method="GET", path="/"))) <= 4000


def test_an_error_in_a_stream_gets_the_status_of_its_code() -> None:
    gone = error_in_stream({"error": "gone", "code": "sandbox_gone"}, method="GET", path="/")
    assert isinstance(gone, errors.SandboxGone) and gone.status == 410
    assert error_in_stream({}, method="GET", path="/").status == 500


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(error_of(404, {"error": "why", "code": "sandbox_not_found"}, method="GET", path="/x")))
    assert isinstance(error, errors.SandboxNotFound) and isinstance(error, belljar.NotFoundError)
    assert (error.message, error.details["path"]) == ("why", "/x")
    found = [kind for kind in vars(belljar.sdk.errors).values() if isinstance(kind, type)]
    for kind in [kind for kind in found if issubclass(kind, belljar.BelljarError)]:
        told = kind("why")
        told.details = {"path": "/x"}
        again = pickle.loads(pickle.dumps(told))
        assert type(again) is kind and (again.message, again.details) == ("why", {"path": "/x"}), kind
    failed = pickle.loads(pickle.dumps(belljar.CommandFailed("m", exit_code=2, stdout="o", stderr="e")))
    assert (failed.exit_code, failed.stdout, failed.stderr) == (2, "o", "e")


def test_every_exception_of_the_published_client_has_its_counterpart() -> None:
    published = {name: kind for name, kind in vars(pandastack.exceptions).items() if isinstance(kind, type)}
    for name, kind in published.items():
        ours = getattr(belljar, name)
        parents = {parent.__name__ for parent in kind.__mro__} - {"Exception", "BaseException", "object"}
        assert parents <= {parent.__name__ for parent in ours.__mro__}, name
    failed = belljar.CommandFailed("m", exit_code=2, stdout="o", stderr="e")
    assert (failed.exit_code, failed.stdout, failed.stderr) == (2, "o", "e")


def test_a_wrong_argument_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="port"):
        belljar.Sandbox(id="sb-1").preview_url(0)
    with pytest.raises(ValueError, match="no address"):
        belljar.Client("ftp://example.com")
