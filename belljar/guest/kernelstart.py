"""From a language to a kernel that runs: by a fork of a zygote for Python, by exec for the rest."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any, Final, NamedTuple

from belljar.guest.accounts import Account
from belljar.guest.context import Context
from belljar.guest.failure import Failure
from belljar.guest.kernelprocess import Ends, Kernel
from belljar.guest.languages import KERNELS, Language
from belljar.guest.spawn import CONTROL_FD, Launched, Plan, find_programs, parse_failure
from belljar.guest.zygotes import Zygote

COLD_DEADLINE_S: Final = 120.0


class Setting(NamedTuple):
    """Where a context's kernel starts, the first one and those that replace it."""

    language: Language
    account: Account
    cwd: str | None  # None: the sandbox's default
    env: dict[str, str]


class Starter:
    """Starts kernels, and keeps the zygotes: one for each user who has Python contexts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._zygotes: dict[int, Zygote] = {}
        self._starting = asyncio.Lock()

    async def start(self, name: str, setting: Setting) -> Kernel:
        """A kernel that has not been told anything yet."""
        if setting.language.argv:
            return await self._start_program(setting)
        return await self._fork(name, setting)

    def signal_zygotes(self, number: int) -> None:
        for zygote in self._zygotes.values():
            zygote.send_signal(number)

    # -- programs

    async def _start_program(self, setting: Setting) -> Kernel:
        ends = Ends()
        control, stdout, stderr = ends.theirs
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            plan = self._plan(list(setting.language.argv), setting)
            plan.env["BELLJAR_CONTROL_FD"] = str(CONTROL_FD)
            launched = await self._launch(plan, (null, stdout, stderr, control))
            ends.given()
            return Kernel(launched.pid, os.pidfd_open(launched.pid), launched.group, ends, None)
        except BaseException:
            ends.close()
            raise
        finally:
            os.close(null)

    def _plan(self, argv: list[str], setting: Setting) -> Plan:
        context, account = self._context, setting.account
        env = context.environment(account, setting.env)
        programs = find_programs(argv[0], env.get("PATH", ""))
        cwd = context.resolve(setting.cwd or "")
        return Plan(argv, programs, env, cwd, setting.cwd is not None, account.uid, account.gid, account.groups, False)

    async def _launch(self, plan: Plan, fds: tuple[int, ...]) -> Launched:
        launched = self._context.launcher.launch(plan, fds)
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bytes] = loop.create_future()
        loop.add_reader(launched.report_fd, _pass_report, launched.report_fd, told)
        try:
            report = await told
        finally:
            loop.remove_reader(launched.report_fd)
            os.close(launched.report_fd)
        loop.call_soon(self._context.launcher.prepare)
        if report:
            os.waitpid(launched.pid, 0)  # noqa: ASYNC222 (it is dead)
            launched.group.remove()
            raise parse_failure(report, plan)
        return launched

    # -- Python

    async def warm(self, account: Account, preload: list[str], deadline_s: float) -> dict[str, Any]:
        """A zygote that has imported `preload`. Returns what it says of itself."""
        async with self._starting:
            zygote = self._zygotes[account.uid] = await self._start_zygote(account, preload)
        return await zygote.wait_warm(deadline_s)

    async def _fork(self, name: str, setting: Setting) -> Kernel:
        zygote = await self._zygote(setting.account)
        group = self._context.groups.make()
        ends = Ends()
        try:
            pid = await zygote.fork(name, self._context.resolve(setting.cwd or ""), ends.theirs)
            ends.given()
            pidfd = os.pidfd_open(pid)
            try:
                group.adopt(pid)
            except BaseException:
                os.close(pidfd)
                raise
            return Kernel(pid, pidfd, group, ends, lambda: zygote.status_of(pid))
        except BaseException as error:
            ends.close()
            group.remove()
            if isinstance(error, OSError):
                raise Failure("sandbox_error", "the new Python process died at once; the guest may be out of memory") from None
            raise

    async def _zygote(self, account: Account) -> Zygote:
        async with self._starting:
            zygote = self._zygotes.get(account.uid)
            if zygote is None or not zygote.alive:
                zygote = self._zygotes[account.uid] = await self._start_zygote(account, [])
        await zygote.wait_warm(COLD_DEADLINE_S)
        return zygote

    async def _start_zygote(self, account: Account, preload: list[str]) -> Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, writer = os.pipe()
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.set_blocking(reader, False)
        try:
            python = os.path.join(self._context.venv, "bin/python")  # noqa: PTH118
            zygote = os.path.join(KERNELS, "zygote.py")  # noqa: PTH118
            argv = [python, zygote, str(CONTROL_FD), json.dumps(preload)]
            plan = self._plan(argv, Setting(Language("python", ()), account, None, {}))
            launched = await self._launch(plan, (null, null, writer, theirs.fileno()))
        except BaseException:
            ours.close()
            os.close(reader)
            raise
        finally:
            theirs.close()
            os.close(writer)
            os.close(null)
        return Zygote(launched.pid, launched.group, ours, reader)


def _pass_report(fd: int, told: asyncio.Future[bytes]) -> None:
    if not told.done():
        try:
            told.set_result(os.read(fd, 64))
        except OSError:  # it died with our plan unread
            told.set_result(b"?")
