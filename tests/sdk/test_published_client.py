"""Whoever used `pandastack` changes one import line: names, arguments, answers and behaviour are the same."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pandastack
import pytest

import belljar
from tests.sdk import scenario
from tests.server.conftest import Server

# Products of that vendor which have no counterpart here.
ELSEWHERE = {"AppsAPI", "CmaConfig", "DatabasesAPI", "FunctionsAPI", "SchedulesAPI", "TemplateBuild", "VolumesAPI", "Worker"}
CLASSES = [
    "Client",
    "Sandbox",
    "SandboxFilesystem",
    "SandboxCommands",
    "CodeContext",
    "Execution",
    "Result",
    "ExecResult",
    "FileInfo",
    "Token",
    "Template",
    "SnapshotsAPI",
    "BranchOutcome",
    "Candidate",
    "ExploreResult",
    "CreateRetryEvent",
]


def test_every_name_can_be_imported() -> None:
    missing = [name for name in pandastack.__all__ if name not in ELSEWHERE and not hasattr(belljar, name)]
    assert not missing


def parameters(call: Any) -> list[tuple[str, Any]]:
    return [(parameter.name, parameter.kind) for parameter in inspect.signature(call).parameters.values()]


def public_calls(kind: type) -> dict[str, Any]:
    found = {name: member for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}
    return {name: member for name, member in found.items() if name not in ("from_dict",)}


@pytest.mark.parametrize("name", CLASSES)
def test_every_call_takes_the_same_arguments_in_the_same_order(name: str) -> None:
    theirs, ours = getattr(pandastack, name), getattr(belljar, name)
    for call, published in public_calls(theirs).items():
        wanted = parameters(published)
        given = parameters(getattr(ours, call))
        if any(kind is inspect.Parameter.VAR_KEYWORD for _, kind in wanted):
            continue
        positional = [word for word, kind in wanted if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        named = {word for word, kind in wanted if kind is inspect.Parameter.KEYWORD_ONLY}
        assert [word for word, _ in given][: len(positional)] == positional, f"{name}.{call}"
        assert named <= {word for word, _ in given}, f"{name}.{call}"


@pytest.mark.parametrize("name", CLASSES)
def test_every_attribute_is_there(name: str) -> None:
    theirs, ours = getattr(pandastack, name), getattr(belljar, name)
    properties = {word for word, member in inspect.getmembers(theirs) if isinstance(member, property)}
    fields = (
        {word for word in getattr(theirs, "__dataclass_fields__", {}) if not word.startswith("_")} if name != "Sandbox" else set()
    )
    known = set(dir(ours)) | set(getattr(ours, "__dataclass_fields__", {}))
    assert not [word for word in sorted(properties | fields) if word not in known]


@pytest.mark.parametrize("name", ["sandboxes", "templates", "tokens", "snapshots"])
def test_the_parts_of_a_client_take_the_same_arguments(name: str) -> None:
    theirs = getattr(pandastack.Client(api_key="k", api_url="http://127.0.0.1:1"), name)
    ours = getattr(belljar.Client("http://127.0.0.1:1"), name)
    building = {"build", "builds", "get_build", "build_logs", "build_from_dockerfile", "wait_for_build", "register", "push"}
    for call, published in public_calls(type(theirs)).items():
        if call in building:
            continue
        positional = [word for word, kind in parameters(published) if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        given = [word for word, _ in parameters(getattr(type(ours), call))]
        assert given[: len(positional)] == positional, f"{name}.{call}"


def test_the_same_program_sees_the_same(sdk_server: Server, tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}
    for client in (pandastack, belljar):
        folder = tmp_path / client.__name__
        folder.mkdir()
        seen[client.__name__] = scenario.run(client, sdk_server.url, sdk_server.token or "", folder)
    assert len(seen["pandastack"]) > 40
    assert seen["belljar"] == seen["pandastack"]
