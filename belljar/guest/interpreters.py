"""All code contexts of a sandbox, and the operations on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

from belljar.guest.channel import Channel, Lost
from belljar.guest.codecontext import CodeContext
from belljar.guest.context import Context
from belljar.guest.execution import DEFAULT_OUTPUT, DEFAULT_RESULTS, MAX_BUDGET, Wishes
from belljar.guest.failure import Failure, invalid
from belljar.guest.journal import Memory
from belljar.guest.kernelstart import Setting, Starter
from belljar.guest.languages import find_language, list_languages
from belljar.guest.params import Params

DEFAULT: Final = "default"
MAX_CONTEXTS: Final = 64
MAX_CODE: Final = 4 * 1024 * 1024

_WARM_DEADLINE_S: Final = 900.0

Answer = dict[str, Any] | None


class Interpreters:
    """The table. `DEFAULT` is there when its template was baked with one, and is the first that a client gets."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._starter = Starter(context)
        self._memory = Memory()
        self._contexts: dict[str, CodeContext] = {}
        self._made = 0
        self._default_is_free = False

    def operations(self) -> dict[str, Callable[[Channel, Params], Answer | Awaitable[Answer]]]:
        return {
            "context.warm": self.warm,
            "context.languages": self.languages,
            "context.create": self.create,
            "context.list": self.list,
            "context.delete": self.delete,
            "context.restart": self.restart,
            "context.interrupt": self.interrupt,
            "context.variables": self.variables,
            "context.run": self.run,
            "context.attach": self.attach,
        }

    def thawed(self, env: dict[str, str], cwd: str | None) -> None:
        """After a restore: contexts are copies of those that were saved."""
        self._starter.signal_zygotes(signal.SIGUSR1)
        for context in self._contexts.values():
            context.thawed(env, cwd)

    def _get(self, params: Params) -> CodeContext:
        name = params.text("id")
        context = self._contexts.get(name)
        if context is None:
            raise Failure("context_not_found", f"there is no context {name!r} in this sandbox; it was deleted, or never was")
        return context

    # -- making them

    async def warm(self, channel: Channel, params: Params) -> dict[str, Any]:
        preload, cells = params.find_texts("preload") or [], params.find_texts("cells") or []
        setting = self._setting("python", params)
        if DEFAULT in self._contexts:
            raise Failure("conflict", "the default context is there already")
        told = await self._starter.warm(setting.account, preload, _WARM_DEADLINE_S)
        failed = told.get("failed")
        if isinstance(failed, list) and failed:
            raise invalid(f"modules to preload that cannot be imported: {', '.join(map(str, failed))}")
        context = self._add(DEFAULT, setting)
        await self._start(context)
        for code in cells:
            error = await context.run_quietly(code, _WARM_DEADLINE_S)
            if error is not None:
                where = "\n".join(error["traceback"][-20:])
                raise invalid(f"a cell to warm up with failed: {error['name']}: {error['value']}\n{where}"[:4000])
        self._default_is_free = True
        return {"version": str(told.get("version"))}

    async def create(self, channel: Channel, params: Params) -> dict[str, Any]:
        setting = self._setting(params.text("language"), params)
        plain = setting.language.name == "python" and setting.cwd is None and not setting.env and params.find_text("user") is None
        default = self._contexts.get(DEFAULT)
        if plain and self._default_is_free and default is not None:
            self._default_is_free = False
            return self._describe(default)
        if len(self._contexts) >= MAX_CONTEXTS:
            raise Failure("conflict", f"there are {MAX_CONTEXTS} contexts already; delete some first")
        self._made += 1
        context = self._add(f"c{self._context.agent_start}-{self._made}", setting)
        await self._start(context)
        if not channel.open:  # whoever asked will never know its name
            self._drop(context)
            raise Lost
        return self._describe(context)

    def _setting(self, language: str, params: Params) -> Setting:
        account = self._context.account(params)
        found = find_language(self._context, language)
        cwd = params.find_text("cwd")
        if cwd is not None and not os.path.isdir(self._context.resolve(cwd)):  # noqa: PTH112
            raise Failure("file_not_found", f"working directory {cwd}: there is no such directory")
        return Setting(found, account, cwd, params.environment("env") or {})

    def _add(self, name: str, setting: Setting) -> CodeContext:
        context = self._contexts[name] = CodeContext(name, setting, self._context, self._starter, self._memory)
        return context

    async def _start(self, context: CodeContext) -> None:
        try:
            await context.start()
        except BaseException:
            self._drop(context)
            raise

    def _drop(self, context: CodeContext) -> None:
        if self._contexts.get(context.id) is context:
            del self._contexts[context.id]
            context.delete()

    def _describe(self, context: CodeContext) -> dict[str, Any]:
        return context.describe(context.id == DEFAULT)

    # -- operations

    def languages(self, channel: Channel, params: Params) -> dict[str, Any]:
        return {"languages": list_languages(self._context)}

    def list(self, channel: Channel, params: Params) -> dict[str, Any]:
        return {"contexts": [self._describe(context) for context in self._contexts.values()]}

    def delete(self, channel: Channel, params: Params) -> dict[str, Any]:
        self._drop(self._get(params))
        return {}

    async def restart(self, channel: Channel, params: Params) -> dict[str, Any]:
        await self._get(params).restart()
        return {}

    def interrupt(self, channel: Channel, params: Params) -> dict[str, Any]:
        return {"interrupted": self._get(params).interrupt()}

    async def variables(self, channel: Channel, params: Params) -> dict[str, Any]:
        return await self._get(params).variables()

    def attach(self, channel: Channel, params: Params) -> None:
        self._get(params).attach(channel, params.find_text("execution"))

    def run(self, channel: Channel, params: Params) -> None:
        context = self._get(params)
        code, wishes = params.find_text("code"), _wishes(params)
        if not wishes.silent and context.id == DEFAULT:
            self._default_is_free = False
        if code is not None:
            context.submit(channel, wishes._replace(code=code))
        else:
            self._receive_code(channel, context, wishes)

    def _receive_code(self, channel: Channel, context: CodeContext, wishes: Wishes) -> None:
        """Code that is too long for a request comes as data behind it."""
        received = bytearray()

        def on_data(data: bytes) -> None:
            received.extend(data)
            channel.consumed(len(data))
            if len(received) > MAX_CODE:
                raise invalid(f"code of more than {MAX_CODE} bytes; write it to a file first")

        def on_end() -> None:
            try:
                code = received.decode()
            except UnicodeDecodeError:
                raise invalid("the code is not UTF-8") from None
            if self._contexts.get(context.id) is not context:
                raise Failure("context_not_found", f"context {context.id!r} was deleted while the code was on its way")
            context.submit(channel, wishes._replace(code=code))

        channel.on_end = on_end
        channel.take_over(on_data)


def _wishes(params: Params) -> Wishes:
    on_disconnect = params.find_text("on_disconnect") or "interrupt"
    if on_disconnect not in ("interrupt", "continue"):
        raise invalid("`on_disconnect` must be `interrupt` or `continue`")
    return Wishes(
        "",
        params.find_text("stdin"),
        params.flag("changes"),
        params.find_seconds("timeout_s"),
        on_disconnect == "continue",
        params.flag("silent"),
        params.integer("max_output", DEFAULT_OUTPUT, 0, MAX_BUDGET),
        params.integer("max_results", DEFAULT_RESULTS, 0, MAX_BUDGET),
    )
