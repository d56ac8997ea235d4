"""Code contexts of a sandbox: made, used event by event, and used once.

`default` is the first Python context, `default:<language>` the first of that language. Running a cell in one makes it if need be.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from belljar.errors import ContextNotFound
from belljar.fleet.cell import Cell
from belljar.fleet.cell_reader import Budget
from belljar.fleet.contexts import DEFAULT_ID, DEFAULT_LANGUAGE, CodeContext, ContextInfo, OnDisconnect, plain_name
from belljar.fleet.execution import Event, Execution, Stderr, Stdout
from belljar.fleet.results import Variable
from belljar.fleet.sandbox import Sandbox
from belljar.service.running import check_limit
from belljar.service.workspace import Workspace


@dataclass(frozen=True)
class Wishes:
    """How a cell is to be run. `on_disconnect`: what becomes of it when its caller goes away."""

    timeout_s: float | None = None
    stdin: str | None = None
    changes: bool = False
    on_disconnect: OnDisconnect = "interrupt"
    max_output: int = Budget.output
    max_results: int = Budget.results


async def create(
    workspace: Workspace,
    sandbox_id: str,
    language: str,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
) -> ContextInfo:
    async with workspace.guest(sandbox_id) as sandbox:
        context = await sandbox.contexts.create(language, cwd=cwd, env=env, user=user)
        return await _info(sandbox, context.id)


async def list_all(workspace: Workspace, sandbox_id: str) -> list[ContextInfo]:
    async with workspace.guest(sandbox_id) as sandbox:
        return await sandbox.contexts.list()


async def languages(workspace: Workspace, sandbox_id: str) -> list[str]:
    async with workspace.guest(sandbox_id) as sandbox:
        return await sandbox.contexts.languages()


async def find(workspace: Workspace, sandbox_id: str, name: str) -> ContextInfo:
    async with workspace.guest(sandbox_id) as sandbox:
        return await _info(sandbox, name)


async def _info(sandbox: Sandbox, name: str) -> ContextInfo:
    language = _language(name)
    found = await sandbox.contexts.list()
    for info in found:
        if info.id == name:
            return info
    for info in found:
        if info.language == language:
            return info
    raise ContextNotFound(f"there is no context {name[:80]!r} in this sandbox; `list` shows those that are there")


def _language(name: str) -> str | None:
    """The language whose first context is meant; None for the id of a context."""
    if name == DEFAULT_ID:
        return DEFAULT_LANGUAGE
    prefix, colon, language = name.partition(":")
    return plain_name(language) if colon and prefix == DEFAULT_ID else None


async def _get(sandbox: Sandbox, name: str) -> CodeContext:
    """One that is there; the guest itself knows best whether an id is one."""
    return sandbox.contexts.named(name if _language(name) is None else (await _info(sandbox, name)).id)


# -- cells --------------------------------------------------------------------------------------------------------------------


async def run(workspace: Workspace, sandbox_id: str, name: str, code: str, wishes: Wishes, *, make: bool = True) -> Execution:
    """A cell to its end. What goes wrong in it is data, a time limit included. Without `make`, `default` is an id like others."""
    options = _options(workspace, wishes)
    async with workspace.guest(sandbox_id) as sandbox:
        begun = _begin(sandbox, name, code, options) if make else _start(sandbox.contexts.named(name), code, options)
        cell, _ = await begun
        with workspace.parts.logs.writer(sandbox_id) as log:
            return await cell.wait(partial(log.write, "stdout"), partial(log.write, "stderr"))


async def stream(workspace: Workspace, sandbox_id: str, name: str, code: str, wishes: Wishes) -> AsyncGenerator[Event, None]:
    """The same, event by event. Leaving leaves the cell to `on_disconnect`."""
    options = _options(workspace, wishes)
    async with workspace.guest(sandbox_id, "stream") as sandbox:
        cell, first = await _begin(sandbox, name, code, options)
        async with cell:
            yield first
            with workspace.parts.logs.writer(sandbox_id) as log:
                async for event in cell:
                    if isinstance(event, Stdout | Stderr):
                        log.write("stdout" if isinstance(event, Stdout) else "stderr", event.text)
                    yield event


async def attach(workspace: Workspace, sandbox_id: str, name: str, execution: str | None) -> AsyncGenerator[Event, None]:
    """The running cell of a context or its last one, from its start. Leaving does not touch it."""
    async with workspace.guest(sandbox_id, "stream") as sandbox, (await _get(sandbox, name)).attach(execution) as cell:
        async for event in cell:
            yield event


async def run_once(workspace: Workspace, sandbox_id: str, language: str, code: str, timeout_s: float) -> Execution:
    """A cell in a context of its own, which is gone afterwards."""
    options = _options(workspace, Wishes(timeout_s=timeout_s))
    async with workspace.guest(sandbox_id) as sandbox:
        context = await sandbox.contexts.create(language)
        if context.id == DEFAULT_ID:  # the one that is warm is for those who come back
            context = await sandbox.contexts.create(language)
        try:
            with workspace.parts.logs.writer(sandbox_id) as log:
                on_stdout, on_stderr = partial(log.write, "stdout"), partial(log.write, "stderr")
                return await context.run(code, **options, on_stdout=on_stdout, on_stderr=on_stderr)
        finally:
            await context.delete()


def _options(workspace: Workspace, wishes: Wishes) -> dict[str, Any]:
    timeout_s = wishes.timeout_s if wishes.timeout_s is not None else workspace.parts.settings.max_exec_s
    check_limit(workspace, timeout_s)
    return {**asdict(wishes), "timeout_s": timeout_s}


async def _begin(sandbox: Sandbox, name: str, code: str, options: dict[str, Any]) -> tuple[Cell, Event]:
    """A cell that has left the queue, and its first event."""
    language = _language(name)
    if language is None:
        return await _start(sandbox.contexts.named(name), code, options)
    try:
        return await _start(await sandbox.contexts.first(language), code, options)
    except ContextNotFound:  # it never ran: the context was deleted since, or this template brings none
        return await _start(await sandbox.contexts.first(language, again=True), code, options)


async def _start(context: CodeContext, code: str, options: dict[str, Any]) -> tuple[Cell, Event]:
    cell = context.stream(code, **options)
    return cell, await anext(cell)


# -- the rest -----------------------------------------------------------------------------------------------------------------


async def interrupt(workspace: Workspace, sandbox_id: str, name: str) -> bool:
    """Stop the running cell and keep the state. False if none was running."""
    async with workspace.guest(sandbox_id) as sandbox:
        return await (await _get(sandbox, name)).interrupt()


async def restart(workspace: Workspace, sandbox_id: str, name: str) -> None:
    async with workspace.guest(sandbox_id) as sandbox:
        await (await _get(sandbox, name)).restart()


async def delete(workspace: Workspace, sandbox_id: str, name: str) -> None:
    async with workspace.guest(sandbox_id) as sandbox:
        await (await _get(sandbox, name)).delete()


async def variables(workspace: Workspace, sandbox_id: str, name: str) -> list[Variable]:
    async with workspace.guest(sandbox_id) as sandbox:
        return await (await _get(sandbox, name)).variables()
