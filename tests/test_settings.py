"""Settings: precedence, and errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import InvalidInput
from belljar.settings import SETTINGS, Settings, load_settings


def test_defaults_hold_when_nothing_is_set(tmp_path: Path) -> None:
    settings = load_settings({"HOME": str(tmp_path)})
    assert settings.home == Path("~/.local/share/belljar").expanduser()
    assert settings.recipes.name == "templates"
    assert (settings.accel, settings.jail, settings.pool_size) == ("auto", "auto", 0)


def test_override_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('pool_size = 1\nqemu = "file-qemu"\naccel = "kvm"\n')
    environ = {"BELLJAR_HOME": str(tmp_path), "BELLJAR_POOL_SIZE": "2", "BELLJAR_QEMU": "env-qemu"}
    settings = load_settings(environ, {"pool_size": 3, "qemu": None})
    assert (settings.pool_size, settings.qemu, settings.accel, settings.jail) == (3, "env-qemu", "kvm", "auto")


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    assert load_settings({"BELLJAR_HOME": str(tmp_path), "BELLJAR_ACCEL": ""}).accel == "auto"


def test_every_row_of_the_table_is_a_field() -> None:
    assert [setting.key for setting in SETTINGS] == list(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("home", "relative/path"),
        ("home", "/nul\0"),
        ("accel", "xen"),
        ("qemu", "\0"),
        ("pool_size", "-1"),
        ("pool_size", "many"),
        ("pool_size", "9" * 10_000),
        ("host_memory_reserve_mib", "1.5"),
        ("host_disk_reserve_mib", "-5"),
        ("memory_oversubscription", "nan"),
        ("memory_oversubscription", "0"),
        ("uid_base", "0"),
        ("uid_count", "0"),
        ("jail", "on"),
    ],
)
def test_a_bad_value_names_the_setting(tmp_path: Path, key: str, value: str) -> None:
    environ = {"BELLJAR_HOME": str(tmp_path), f"BELLJAR_{key.upper()}": value}
    with pytest.raises(InvalidInput, match=f"BELLJAR_{key.upper()}") as caught:
        load_settings(environ)
    assert caught.value.details == {"setting": key}
    assert len(caught.value.message) < 400


def test_user_ids_cannot_run_past_the_last_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="uid_count"):
        load_settings({"BELLJAR_HOME": str(tmp_path), "BELLJAR_UID_BASE": str(2**32 - 10)})


@pytest.mark.parametrize("content", ["pool_sise = 1", 'home = "/x"', "pool_size = ", 'pool_size = "x"', "pool_size = true"])
def test_a_bad_file_is_an_error_and_not_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.toml").write_text(content)
    with pytest.raises(InvalidInput, match=r"config\.toml"):
        load_settings({"BELLJAR_HOME": str(tmp_path)})


def test_an_unknown_override_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no setting 'colour'"):
        load_settings({"BELLJAR_HOME": str(tmp_path)}, {"colour": "red"})
