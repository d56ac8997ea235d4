"""Every setting of Belljar in one table: environment variable, key in the configuration file, default, help.

Read once into a frozen value. Stronger first: an override (a command line flag), the environment, the configuration file
(`$BELLJAR_HOME/config.toml`, or the one that `--config` or `$BELLJAR_CONFIG` names), the default. A bad value is an error that
names the setting and where it came from; an unknown key in the file is an error too, because a misspelt limit that is silently
ignored is worse than none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Settings:
    """What this process runs with."""

    home: Path
    recipes: Path
    accel: str
    qemu: str
    pool_size: int
    host_memory_reserve_mib: int
    host_disk_reserve_mib: int
    memory_oversubscription: float
    disk_oversubscription: float
    max_queued_starts: int
    uid_base: int
    uid_count: int
    jail: str
    host: str
    port: int
    idle_timeout_s: float
    max_exec_s: float
    shutdown_grace_s: float
    log_format: str
    log_level: str
    quota_sandboxes: int
    quota_memory_mib: int
    quota_disk_mib: int
    quota_rate_per_s: float
    quota_rate_burst: int
    egress: str
    egress_allow_private: str
    egress_dns: str
    egress_ca_file: str
    egress_connections: int
    egress_bytes_per_second: int
    egress_bytes: int
    preview_domain: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. `key` is the field of Settings and the key in config.toml; `parse` raises ValueError with a reason."""

    key: str
    default: Any
    parse: Callable[[object], Any]
    help: str

    @property
    def env(self) -> str:
        return "BELLJAR_" + self.key.upper()


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("expected a text that is not empty")
    return value


def _directory(value: object) -> Path:
    path = Path(_text(value)).expanduser()
    if not path.is_absolute():
        raise ValueError("expected an absolute path")
    return path


def _domain(value: object) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?", _text(value), re.ASCII):
        raise ValueError("expected a domain in lower case, with or without a port, such as previews.example.com")
    return str(value)


def _one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return str(value)

    return parse


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal() and len(value) <= 20:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return value

    return parse


def _real(low: float, high: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        reason = f"expected a number from {low:g} to {high:g}"
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(reason)
        try:
            number = float(value)
        except ValueError:
            raise ValueError(reason) from None
        if not low <= number <= high:  # also refuses NaN
            raise ValueError(reason)
        return number

    return parse


SETTINGS: tuple[Setting, ...] = (
    Setting("home", "~/.local/share/belljar", _directory, "where kernels, images, snapshots and sandboxes are kept"),
    Setting("recipes", str(Path(__file__).resolve().parent.parent / "templates"), _directory, "the folder of template recipes"),
    Setting("accel", "auto", _one_of("auto", "kvm", "tcg"), "accelerator; auto uses kvm where a guest really boots under it"),
    Setting("qemu", "qemu-system-x86_64", _text, "name or path of the QEMU program"),
    Setting("pool_size", 0, _whole(0, 1000), "machines kept started ahead for each template in use; a server keeps 1"),
    Setting("host_memory_reserve_mib", 512, _whole(0, 2**24), "memory that sandboxes leave to the host"),
    Setting("host_disk_reserve_mib", 1024, _whole(0, 2**30), "disk space that sandboxes leave to the host"),
    Setting("memory_oversubscription", 8.0, _real(1, 1000), "guest memory promised in all, as a multiple of the host's"),
    Setting("disk_oversubscription", 20.0, _real(1, 1000), "disk promised to sandboxes, as a multiple of the file system's"),
    Setting("max_queued_starts", 64, _whole(1, 10_000), "starts that may wait for their turn; more are told to try again"),
    Setting("uid_base", 1_900_000_000, _whole(1000, 2**32 - 2), "first user id for machines, one each, when root starts them"),
    Setting("uid_count", 50_000, _whole(1, 2**31), "how many user ids, from uid_base on, machines may use"),
    Setting("jail", "auto", _one_of("auto", "off"), "confine each QEMU to its own files; off only to look for faults"),
    Setting("host", "127.0.0.1", _text, "the address that the server listens on"),
    Setting("port", 8080, _whole(0, 65535), "the port that the server listens on; 0 picks a free one"),
    Setting("idle_timeout_s", 600.0, _real(1, 31_536_000), "seconds of inactivity after which a persistent sandbox hibernates"),
    Setting("max_exec_s", 86_400.0, _real(1, 31_536_000), "the longest that one command or cell may take through the server"),
    Setting("shutdown_grace_s", 10.0, _real(0, 3600), "seconds that calls under way get when the server is told to stop"),
    Setting("log_format", "auto", _one_of("auto", "json", "text"), "of the server's log; auto: text on a terminal, else json"),
    Setting("log_level", "info", _one_of("debug", "info", "warning", "error"), "the least that the server's log tells"),
    Setting("quota_sandboxes", 0, _whole(0, 2**31), "sandboxes that a workspace may have, asleep ones included; 0 is no limit"),
    Setting("quota_memory_mib", 0, _whole(0, 2**40), "memory of a workspace's sandboxes that are awake; 0 is no limit"),
    Setting("quota_disk_mib", 0, _whole(0, 2**40), "disks of a workspace's sandboxes and its snapshots; 0 is no limit"),
    Setting("quota_rate_per_s", 25.0, _real(0, 1e6), "requests per second that a workspace may make for long; 0 is no limit"),
    Setting("quota_rate_burst", 50, _whole(1, 10**6), "requests that a workspace may make at once"),
    Setting("egress", "open", _text, "what sandboxes may connect to by default: open, off, or a list of what is allowed"),
    Setting("egress_allow_private", "none", _text, "private addresses and networks that sandboxes may reach: none, or a list"),
    Setting("egress_dns", "host", _text, "name servers for sandboxes: host for those of this machine, or a list of addresses"),
    Setting("egress_ca_file", "system", _text, "a file of further authorities that servers behind secrets are verified with"),
    Setting("egress_connections", 256, _whole(1, 512), "connections that one sandbox may have open; a policy may ask for fewer"),
    Setting("egress_bytes_per_second", 0, _whole(0, 2**60), "bytes a second that one sandbox may move each way; 0 for any"),
    Setting("egress_bytes", 0, _whole(0, 2**60), "bytes that one sandbox may move in all, both ways; 0 for any"),
    Setting("preview_domain", "auto", _domain, "the domain (and :port) of addresses of previews; auto takes the server's own name"),
)

CONFIG_FILE = "config.toml"
CONFIG_ENV = "BELLJAR_CONFIG"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting, its value, and where the value came from."""

    setting: Setting
    value: Any
    source: str


def load_settings(
    environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None, file: str | None = None
) -> Settings:
    """The settings in force. An empty environment variable counts as unset; an override of None too."""
    found = {effective.setting.key: effective.value for effective in explain_settings(environ, overrides, file)}
    settings = Settings(**found)
    if settings.uid_base + settings.uid_count > 2**32 - 2:
        raise InvalidInput("uid_base + uid_count goes past the last user id; lower one of them", setting="uid_count")
    return settings


def explain_settings(
    environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None, file: str | None = None
) -> list[Effective]:
    """Every setting with its source. `file` takes the place of the home's own, and unlike that one must be there."""
    environ = os.environ if environ is None else environ
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    table = {setting.key: setting for setting in SETTINGS}
    if unknown := sorted(given.keys() - table.keys()):
        raise InvalidInput(f"there is no setting {unknown[0]!r}", setting=unknown[0])

    def effective(setting: Setting, from_file: Mapping[str, object], file: Path | None) -> Effective:
        if setting.key in given:
            return _effective(setting, given[setting.key], f"option {setting.key}")
        if environ.get(setting.env):
            return _effective(setting, environ[setting.env], setting.env)
        if setting.key in from_file:
            return _effective(setting, from_file[setting.key], f"{setting.key} in {file}")
        return _effective(setting, setting.default, DEFAULT)

    named = file or environ.get(CONFIG_ENV)
    if named:
        path = Path(named).expanduser().absolute()
        from_file = _read_file(path, set(table), needed=True)
    else:
        path = effective(table["home"], {}, None).value / CONFIG_FILE
        from_file = _read_file(path, table.keys() - {"home"}, needed=False)
    return [effective(setting, from_file, path) for setting in SETTINGS]


def _effective(setting: Setting, value: object, source: str) -> Effective:
    try:
        return Effective(setting, setting.parse(value), source)
    except ValueError as problem:
        shown = repr(value)[:80]
        raise InvalidInput(f"{source} is {shown}: {problem} ({setting.help})", setting=setting.key) from None


def _read_file(file: Path, known: set[str], *, needed: bool) -> Mapping[str, object]:
    import tomllib  # late, because the command line reads this table for its help

    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        if isinstance(problem, FileNotFoundError) and not needed:
            return {}
        raise InvalidInput(f"{file} cannot be read: {problem}", setting=CONFIG_FILE) from problem
    if unknown := sorted(content.keys() - known):
        message = f"{file}: there is no setting {unknown[0]!r}; known are {', '.join(sorted(known))}"
        raise InvalidInput(message, setting=unknown[0])
    return content
