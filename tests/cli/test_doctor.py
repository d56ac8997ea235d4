"""doctor and template: how what the library found is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar.fleet import doctor
from belljar.fleet.doctor import Report
from belljar.templates import bake
from belljar.templates.bake import TemplateInfo
from tests.cli.conftest import Command

INFO = TemplateInfo("base", ("b",), "the base", "d" * 64, 3 << 20, None)


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
async def test_doctor_shows_the_table_and_its_exit_code(
    belljar: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: Any, code: int
) -> None:
    report = Report(isolation=["a kernel of its own"], accelerator="tcg")
    report.add("memory", verdict, "1 MiB", "buy some")
    monkeypatch.setattr(doctor, "doctor_report", lambda settings, progress: report)
    assert await belljar("doctor") == code
    shown = capsys.readouterr().out
    assert f"memory  {verdict}" in shown
    assert "memory: buy some" in shown
    assert "a kernel of its own" in shown
    assert await belljar("doctor", "--json") == code
    assert json.loads(capsys.readouterr().out)["checks"][0]["verdict"] == verdict


async def test_templates_are_listed_shown_built_and_removed(
    belljar: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    removed: list[str] = []

    async def build(settings: object, name: str, progress: Any) -> TemplateInfo:
        progress("step one")
        return INFO

    monkeypatch.setattr(bake, "list_templates", lambda settings: [INFO])
    monkeypatch.setattr(bake, "show_template", lambda settings, name: INFO)
    monkeypatch.setattr(bake, "remove_template", lambda settings, name: removed.append(name))
    monkeypatch.setattr(bake, "build_template", build)
    assert await belljar("template", "list") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["base", "dddddddddddd", "3.0", "MiB", "b", "the", "base"]
    assert await belljar("template", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "base"
    assert await belljar("template", "show", "base") == 0
    assert "3145728" in capsys.readouterr().out
    assert await belljar("template", "build", "base") == 0
    out, progress = capsys.readouterr()
    assert out == f"base {'d' * 64}\n"
    assert "step one" in progress
    assert await belljar("template", "rm", "base", "b") == 0
    assert removed == ["base", "b"]
