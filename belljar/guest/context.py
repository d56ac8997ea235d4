"""What every operation of the agent shares: defaults for new processes, accounts, worker threads, and the machine it runs on."""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH118

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from belljar.guest.accounts import Account, Accounts
from belljar.guest.cgroups import Groups, SessionGroups
from belljar.guest.machine import Machine
from belljar.guest.net.setup import Sockets
from belljar.guest.net.trust import Trust
from belljar.guest.params import Params
from belljar.guest.spawn import Launcher
from belljar.guest.workers import Workers

PATH = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


AfterThaw = Callable[[dict[str, str], str | None], None]  # what a thaw has added to the environment, and its directory


@dataclass(slots=True)
class Context:
    machine: Machine
    groups: Groups = field(default_factory=SessionGroups)
    accounts: Accounts = field(default_factory=Accounts)
    workers: Workers = field(default_factory=Workers)
    agent_start: int = 1
    user: str = "user"
    cwd: str = "/workspace"
    env: dict[str, str] = field(default_factory=dict)
    venv: str = "/opt/venv"
    trust: Trust = field(default_factory=Trust)
    sockets: Sockets | None = None  # where the guest's own connections arrive
    after_thaw: list[AfterThaw] = field(default_factory=list)
    launcher: Launcher = field(init=False)

    def __post_init__(self) -> None:
        self.launcher = Launcher(self.groups, self.machine.unprotect_child)

    def account(self, params: Params) -> Account:
        """The user whom a request acts for."""
        return self.accounts.get(params.find_text("user") or self.user)

    def resolve(self, path: str) -> str:
        return os.path.join(self.cwd, path)

    def environment(self, account: Account, extra: dict[str, str] | None) -> dict[str, str]:
        env = {
            "PATH": PATH,
            "VIRTUAL_ENV": "/opt/venv",
            "LANG": "C.UTF-8",
            "HOME": account.home,
            "USER": account.name,
            "LOGNAME": account.name,
            "SHELL": account.shell,
            **self.trust.environment(),
        }
        env.update(self.env)
        if extra:
            env.update(extra)
        return env
