"""What an operator types: settings as options, the unit, tokens, and where a setting came from."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.main import build_parser, main
from belljar.cli.serving import server_settings
from belljar.cli.unit import render_unit
from belljar.errors import Unauthorized
from belljar.service.access import Access
from belljar.settings import SETTINGS, Settings, load_settings
from belljar.store.db import Records
from belljar.store.tokens import Tokens

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.env, raising=False)
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    return tmp_path


def parsed(*words: str) -> Settings:
    return server_settings(build_parser().parse_args(["serve", *words]))


def test_every_setting_is_an_option_of_the_server() -> None:
    for setting in SETTINGS:
        value = "/x" if setting.key in ("home", "recipes") else setting.default
        assert str(getattr(parsed(f"--{setting.key.replace('_', '-')}", str(value)), setting.key)) == str(value)


def test_a_server_keeps_a_machine_ready_unless_told_otherwise(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parsed().pool_size, load_settings().pool_size) == (1, 0)
    assert parsed("--pool-size", "0").pool_size == 0
    (home / "config.toml").write_text("pool_size = 3\nport = 1\n")
    assert (parsed().pool_size, parsed().port) == (3, 1)
    monkeypatch.setenv("BELLJAR_POOL_SIZE", "4")
    assert parsed().pool_size == 4


def test_a_named_file_replaces_the_homes_own_and_must_be_there(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("etc") / "belljar.toml"
    (home / "config.toml").write_text("port = 1\n")
    elsewhere.write_text(f'home = "{home}/inner"\nhost = "::1"\n')
    settings = parsed("--config", str(elsewhere))
    assert (settings.host, settings.port, settings.home) == ("::1", 8080, home), "the environment's home is stronger"
    assert load_settings({"BELLJAR_CONFIG": str(elsewhere)}).home == home / "inner"
    assert main(["serve", "--config", str(home / "none.toml")]) == 1


def test_config_says_where_a_setting_comes_from(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_text("quota_sandboxes = 7\n")
    monkeypatch.setenv("BELLJAR_PORT", "99")
    assert main(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {setting.key for setting in SETTINGS}
    assert shown["port"] == {"value": 99, "source": "BELLJAR_PORT"}
    assert shown["quota_sandboxes"] == {"value": 7, "source": f"quota_sandboxes in {home / 'config.toml'}"}
    assert shown["host"] == {"value": "127.0.0.1", "source": "default"}
    assert main(["config"]) == 0
    assert "BELLJAR_PORT" in capsys.readouterr().out


def test_a_bad_option_names_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--log-format", "xml"]) == 1
    assert "log_format" in capsys.readouterr().err


def test_the_unit_lets_sandboxes_outlive_the_server() -> None:
    command = ["/opt/x y/belljar", "serve", "--print-unit", "--host", "100%"]
    unit = render_unit(command, replace(load_settings(), home=Path("/srv/b")))
    lines = unit.splitlines()
    # Without these three, systemd would end the sandboxes: with the server, or when one of them runs out of memory.
    assert {"KillMode=process", "OOMPolicy=continue", "Type=notify"} <= set(lines)
    assert "ExecStart='/opt/x y/belljar' serve --host 100%%" in lines
    assert "Environment=BELLJAR_HOME=/srv/b" in lines and "ReadWritePaths=/srv/b" in lines
    # These would keep QEMU from translating code, or a jail from being made.
    for harmful in ("MemoryDenyWriteExecute", "PrivateDevices", "ProtectClock", "RestrictNamespaces", "ProtectKernelTunables"):
        assert not [line for line in lines if line.startswith(harmful)]


def test_the_unit_in_the_repository_is_the_one_that_is_printed() -> None:
    installed = replace(load_settings(), home=Path("/var/lib/belljar"))
    assert (ROOT / "packaging/belljar.service").read_text() == render_unit(["/opt/belljar/.venv/bin/belljar", "serve"], installed)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "belljar.service"
    command = [sys.executable, "-m", "belljar.cli.main", "serve", "--print-unit"]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    # What systemd checks is that the program is there; `python -m` has none of its own.
    file.write_text(printed.replace(str(ROOT / "belljar/cli/main.py"), sys.executable))
    checked = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_tokens_are_made_listed_and_revoked_without_a_server(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "ci", "--workspace", "team", "--days", "2"]) == 0
    token = capsys.readouterr().out.strip()
    assert main(["token", "create", "boss", "--admin", "--json"]) == 0
    boss = json.loads(capsys.readouterr().out)
    assert main(["token", "list"]) == 0
    table = capsys.readouterr().out
    assert token[:12] in table and "team" in table and token not in table
    assert main(["token", "list", "--workspace", "team", "--json"]) == 0
    assert [found["label"] for found in json.loads(capsys.readouterr().out)] == ["ci"]

    def caller(text: str) -> object:
        records = Records(home / "belljar.db")
        try:
            return asyncio.run(Access(Tokens(records.database)).check(text))
        finally:
            records.close()

    assert getattr(caller(boss["token"]), "admin", None) is True and getattr(caller(token), "workspace", None) == "team"
    assert main(["token", "revoke", token[:12], boss["token"]]) == 0
    for revoked in (token, boss["token"]):
        with pytest.raises(Unauthorized):
            caller(revoked)
    assert main(["token", "revoke", token[:12]]) == 1
    assert main(["token", "create", "x", "--workspace", "a/b"]) == 1
    assert main(["token", "create", "x", "--days", "0"]) == 1
