"""The published `pandastack` client, unmodified: the calls that the other tests have no use for, and those that are not served."""

from __future__ import annotations

import inspect
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandastack
import pytest
from pandastack import templates, tokens
from pandastack.exceptions import (
    APIConnectionError,
    AuthError,
    BadRequestError,
    CommandFailed,
    CreateCancelled,
    ExecInterrupted,
    NotFoundError,
    PandastackError,
)

from tests.server.conftest import MakeBox, Server

NOT_SERVED = ("apps", "databases", "functions", "schedules", "volumes")


@pytest.fixture
def default(client: pandastack.Client) -> Iterator[None]:
    """The client that calls without one use."""
    pandastack.set_default_client(client)
    yield
    pandastack.set_default_client(None)  # type: ignore[arg-type]


def test_the_environment_says_which_server_and_token(
    client: pandastack.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PANDASTACK_API", f"{client.api_url}/v1")  # with the version in it, which is not doubled
    monkeypatch.setenv("PANDASTACK_API_KEY", client.api_key)
    assert pandastack.Client().me() == client.me()
    monkeypatch.delenv("PANDASTACK_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AuthError):
        pandastack.Client().me()


def test_sandboxes_without_a_client_of_ones_own(default: None) -> None:
    with pandastack.Sandbox.create("base") as made:
        assert pandastack.Sandbox.get(made.id).id == made.id
        assert made.id in [found.id for found in pandastack.Sandbox.list()]
    assert made.id not in [found.id for found in pandastack.Sandbox.list()]


def test_a_persistent_sandbox_outlives_its_with_block(client: pandastack.Client) -> None:
    with client.sandboxes.create("base", persistent=True) as made:
        pass
    with client.sandboxes.get(made.id) as again:  # also known by those who did not create it
        assert again.persistent
    assert client.sandboxes.get(made.id).status == "running"
    client.sandboxes.delete(made.id)


def test_forks_by_id(client: pandastack.Client, make: MakeBox) -> None:
    box = make()
    child = client.sandboxes.fork(box.id, metadata={"k": "v"})
    first, second = client.sandboxes.fork_tree(box.id, count=2)
    assert child.metadata["k"] == "v"
    assert client.sandboxes.promote(first.id, cleanup_siblings=True)["deleted"] == [second.id]
    client.sandboxes.delete(first.id)
    client.sandboxes.delete(child.id)


def test_explore_by_functions_and_scores(make: MakeBox) -> None:
    box = make()
    box.filesystem.write("/tmp/base", "10")
    candidates = [
        pandastack.Candidate.shell("small", "expr $(cat /tmp/base) + 1"),
        pandastack.Candidate.call("large", lambda fork: fork.exec("expr $(cat /tmp/base) + 5").stdout),
    ]
    found = pandastack.explore(box, candidates, score_fn=lambda fork, outcome: float(outcome.value or outcome.stdout_tail))
    assert found.winner is not None and found.winner_outcome is not None
    assert (found.winner_outcome.label, found.winner_outcome.score) == ("large", 15.0)
    assert [outcome.label for outcome in found.best(2)] == ["large", "small"] and "large" in found.table()
    found.winner.kill()
    with pytest.raises(pandastack.ExploreError, match="no viable branch"):
        box.explore(["false", "false"])


def test_errors_of_commands(box: pandastack.Sandbox) -> None:
    with pytest.raises(CommandFailed) as failed:
        box.exec("echo out; echo err >&2; exit 3", check=True)
    assert (failed.value.exit_code, failed.value.stdout, failed.value.stderr) == (3, "out\n", "err\n")
    with pytest.raises(ValueError, match="Unsupported"):
        box.run_code("1", language="cobol")


def test_a_sandbox_that_ends_under_a_stream_is_told(client: pandastack.Client, make: MakeBox) -> None:
    box = make()
    out: list[str] = []

    def end(piece: str) -> None:
        out.append(piece)
        threading.Thread(target=client.sandboxes.delete, args=(box.id,)).start()

    with pytest.raises((ExecInterrupted, PandastackError)):
        box.exec_stream("echo on; sleep 600", end)
    assert "".join(out) == "on\n"


def test_logs(make: MakeBox) -> None:
    box = make()
    box.exec("echo one; echo two >&2")
    assert sorted(box.logs()) == ["one", "two"]
    assert list(box.logs(stream="stderr")) == ["two"]


def test_upload(box: pandastack.Sandbox, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "local").write_bytes(content)
    assert box.filesystem.upload(tmp_path / "local", "/tmp/uploaded") == {"path": "/tmp/uploaded", "bytes": len(content)}
    box.filesystem.download("/tmp/uploaded", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_tokens_and_templates_without_a_client(default: None) -> None:
    made = tokens.create("mine", expires_in_days=1)
    assert made.prefix in [found.prefix for found in tokens.list()]
    tokens.revoke(made.prefix)
    assert made.prefix not in [found.prefix for found in tokens.list()]
    assert "base" in [found.name for found in templates.list()]
    assert templates.get("base").cpu
    with pytest.raises(BadRequestError, match="global"):
        templates.delete("base")


def test_preview_addresses_are_made_by_the_client(client: pandastack.Client, box: pandastack.Sandbox) -> None:
    assert box.preview_url(3000) == f"https://3000-{box.id}.127.0.0.1"
    client.preview_host = "localhost:8080"  # type: ignore[attr-defined]
    try:
        assert box.preview_url(3000, scheme="http") == f"http://3000-{box.id}.localhost:8080"
    finally:
        del client.preview_host  # type: ignore[attr-defined]


def test_a_create_that_is_tried_again_can_be_called_off(own_home: Path) -> None:
    server = Server(own_home, BELLJAR_HOST_MEMORY_RESERVE_MIB=str(2**24))
    try:
        cancel = threading.Event()
        client = pandastack.Client(api_key=server.token, api_url=server.url, on_create_retry=lambda event: cancel.set())
        with pytest.raises(CreateCancelled):
            client.sandboxes.create("base", cancel=cancel)
    finally:
        server.stop()


def test_no_server_at_all() -> None:
    with pytest.raises(APIConnectionError):
        pandastack.Client(api_key="pds_none", api_url="http://127.0.0.1:9").me()


def arguments(function: Any, folder: Path) -> dict[str, object]:
    """Something for each argument that must be given."""
    program = folder / "file.py"
    program.write_text("def handler(event): return event")
    given: dict[str, object] = {"path": str(program), "file_path": str(program), "bundle": b"1", "github_repo_id": 1, "size_mb": 1}
    wanted = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    return {each.name: given.get(each.name, "none") for each in wanted if each.kind != each.VAR_KEYWORD}


def test_what_is_not_served_ends_at_once_with_an_error_of_the_clients_own(client: pandastack.Client, tmp_path: Path) -> None:
    wrong = []
    for place in NOT_SERVED:
        part = getattr(client, place)
        for name, function in inspect.getmembers(part, inspect.ismethod):
            if name.startswith("_"):
                continue
            try:
                result = function(**arguments(function, tmp_path))
                list(result if inspect.isgenerator(result) else [])
                wrong.append(f"{place}.{name} was answered")
            except (NotFoundError, BadRequestError):
                pass
    assert not wrong, "\n".join(wrong)


def test_building_templates_is_not_served(default: None, client: pandastack.Client, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as packed:
        packed.addfile(tarfile.TarInfo("empty"), io.BytesIO(b""))
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    for place in (client.templates, templates):
        calls = {
            "build": lambda at: at.build("mine", rootfs_tar=str(tmp_path / "root.tar")),
            "build_from_dockerfile": lambda at: at.build_from_dockerfile("mine", str(tmp_path / "Dockerfile")),
            "register": lambda at: at.register("mine", "registry/mine:1"),
            "build_logs": lambda at: list(at.build_logs("none")),
            "wait_for_build": lambda at: at.wait_for_build("none"),
        }
        for call in calls.values():
            with pytest.raises((NotFoundError, BadRequestError)):
                call(place)
    with pytest.raises(NotFoundError):
        client.templates.get_build("none")
    assert client.templates.builds() == []
