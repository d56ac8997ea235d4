"""Code contexts: interpreters in a sandbox that keep their state from cell to cell."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from belljar.errors import BelljarError
from belljar.sdk._async.adaptors import Flow, call
from belljar.sdk._async.streaming import AsyncStream
from belljar.sdk.cells import Event, Failure, Fold, Output, Stderr, Stdout, parse_event
from belljar.sdk.errors import SandboxTimeout
from belljar.sdk.requests import MACHINE_S, exec_limits, route
from belljar.sdk.results import Execution, ExecutionError, Result
from belljar.sdk.values import ContextInfo, Display, Variable

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient

# A cell of `run_code` that names no limit gets this one, as with other servers of this wire format.
RUN_CODE_S = 30.0


class AsyncCell(AsyncStream[Event]):
    """A cell event by event. `execution` is what they add up to, once the last one has come."""

    def __init__(self, source: Any, fold: Fold) -> None:
        super().__init__(source)
        self._fold = fold

    @property
    def execution(self) -> Execution:
        return self._fold.execution

    async def wait(
        self,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
        on_error: Callable[[ExecutionError], object] | None = None,
    ) -> Execution:
        """Until the cell is done; each callback gets its kind of event as it comes."""
        async with self:
            async for event in self:
                match event:
                    case Stdout(text):
                        await call(on_stdout, text)
                    case Stderr(text):
                        await call(on_stderr, text)
                    case Output(result):
                        await call(on_result, result)
                    case Failure(error):
                        await call(on_error, error)
        return self.execution


class AsyncCodeContext:
    """One interpreter. Its cells run one after the other."""

    def __init__(self, client: AsyncClient, sandbox_id: str, context_id: str, language: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self.id = context_id
        self.language = language

    async def run(
        self,
        code: str,
        *,
        timeout_seconds: float | None = None,
        stdin: str | None = None,
        changes: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
        on_error: Callable[[ExecutionError], object] | None = None,
        on_disconnect: Literal["interrupt", "continue"] = "interrupt",
        max_output: int | None = None,
        max_results: int | None = None,
    ) -> Execution:
        """Run a cell to its end. What goes wrong in it, a time limit included, is `execution.error`; nothing is raised for it.

        `changes` asks what the cell left behind. `stdin` is what `input()` reads. Beyond `max_output` and `max_results` bytes the
        rest is in files of the sandbox, which `execution.truncated` names.
        """
        cell = self.stream(
            code,
            timeout_seconds=timeout_seconds,
            stdin=stdin,
            changes=changes,
            on_disconnect=on_disconnect,
            max_output=max_output,
            max_results=max_results,
        )
        return await cell.wait(on_stdout, on_stderr, on_result, on_error)

    def stream(
        self,
        code: str,
        *,
        timeout_seconds: float | None = None,
        stdin: str | None = None,
        changes: bool = False,
        on_disconnect: Literal["interrupt", "continue"] = "interrupt",
        max_output: int | None = None,
        max_results: int | None = None,
    ) -> AsyncCell:
        """The same, event by event. Leaving early interrupts the cell, or lets it run on as `on_disconnect` says."""
        body: dict[str, Any] = {
            "code": code,
            "timeout_seconds": timeout_seconds,
            "stdin": stdin,
            "changes": changes or None,
            "on_disconnect": on_disconnect,
            "max_output": max_output,
            "max_results": max_results,
        }
        given = {name: value for name, value in body.items() if value is not None}
        fold = Fold()
        return AsyncCell(self._events("POST", "run", given, {"stream": "1"}, fold), fold)

    def attach(self, execution: str | None = None) -> AsyncCell:
        """Follow the running cell, or the last one, from its start; leaving does not touch it."""
        fold = Fold()
        return AsyncCell(self._events("GET", "attach", None, {"execution": execution}, fold), fold)

    async def _events(
        self, method: str, action: str, body: Mapping[str, Any] | None, params: Mapping[str, Any], fold: Fold
    ) -> Flow[Event]:
        async with aclosing(self._client.transport.events(method, self._route(action), body, params=params)) as items:
            async for item in items:
                event = parse_event(item.name, item.data)
                if event is not None:
                    fold.take(event)
                    yield event
                if fold.over:
                    return

    async def run_code(self, code: str, timeout_seconds: float | None = None) -> Execution:
        """Run a cell within 30 s, or `timeout_seconds`. Unlike `run`, a time limit raises SandboxTimeout, and of the results the
        main one comes first: code that was written for other clients looks there."""
        limit = RUN_CODE_S if timeout_seconds is None else timeout_seconds
        body = {"code": code, "timeout_seconds": limit}
        data = await self._client.transport.object("POST", self._route("run"), body, timeout=exec_limits(limit) + MACHINE_S)
        execution = Execution.from_dict(data)
        if execution.error is not None and execution.error.kind == "timeout":
            raise SandboxTimeout(f"command timed out: {code[:200]}")
        return replace(execution, results=sorted(execution.results, key=lambda result: not result.main))

    async def info(self) -> ContextInfo:
        return ContextInfo.from_dict(await self._client.transport.object("GET", self._route()))

    async def interrupt(self) -> bool:
        """Stop the running cell and keep the state. False if none was running."""
        return bool((await self._client.transport.object("POST", self._route("interrupt"))).get("interrupted"))

    async def restart(self) -> None:
        """A fresh interpreter under the same id; what it knew is gone."""
        await self._client.transport.json("POST", self._route("restart"), timeout=MACHINE_S)

    async def variables(self) -> list[Variable]:
        """The names that cells have defined (Python)."""
        found = await self._client.transport.object("GET", self._route("variables"), timeout=MACHINE_S)
        return [Variable.from_dict(item) for item in found.get("variables") or []]

    async def delete(self) -> None:
        await self._client.transport.json("DELETE", self._route())

    async def close(self) -> None:
        """End it, if it is still there."""
        try:
            await self.delete()
        except BelljarError:
            pass  # the sandbox is gone, or the context is: it is closed either way

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _route(self, *action: str) -> str:
        return route("sandboxes", self._sandbox_id, "contexts", self.id, *action)


class AsyncContexts:
    """The contexts of one sandbox."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def create(
        self,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncCodeContext:
        """A context of its own; `languages` lists what there is, and the server knows their other names (`py`, `sh`, `node` …)."""
        body: dict[str, Any] = {"language": language, "cwd": cwd, "user": user}
        body |= {"env": dict(env)} if env else {}
        given = {name: value for name, value in body.items() if value is not None}
        path = route("sandboxes", self._sandbox_id, "contexts")
        info = ContextInfo.from_dict(await self._client.transport.object("POST", path, given, timeout=MACHINE_S))
        return self._handle(info.id, info.language)

    async def list(self) -> builtins.list[ContextInfo]:
        return [ContextInfo.from_dict(item) for item in (await self._all()).get("contexts") or []]

    async def languages(self) -> builtins.list[str]:
        return [str(name) for name in (await self._all()).get("languages") or []]

    async def get(self, context_id: str) -> AsyncCodeContext:
        info = await self._handle(context_id, "").info()
        return self._handle(info.id, info.language)

    def default(self, language: str = "python") -> AsyncCodeContext:
        """The first context of a language; it is made when it is first used, if there is none. Asks nothing yet."""
        return self._handle("default" if language == "python" else f"default:{language}", language)

    async def run(self, code: str, language: str = "python", **options: Any) -> Execution:
        """A cell in the first context of that language; options as for `AsyncCodeContext.run`."""
        return await self.default(language).run(code, **options)

    async def _all(self) -> dict[str, Any]:
        path = route("sandboxes", self._sandbox_id, "contexts")
        return await self._client.transport.object("GET", path, timeout=MACHINE_S)

    def _handle(self, context_id: str, language: str) -> AsyncCodeContext:
        return AsyncCodeContext(self._client, self._sandbox_id, context_id, language)


class ReplResult:
    """What one execution in a repl came to. `display` has everything that was shown, each in its richest form."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.stdout, self.stderr, self.error = execution.stdout, execution.stderr, execution.error
        self.text = execution.text
        self.display = [Display(result.mime, result.bytes(result.mime)) for result in execution.results]


class AsyncRepl:
    """A context under its older name: `(await repl.execute(code)).display[0].data`."""

    def __init__(self, context: AsyncCodeContext) -> None:
        self.context = context

    async def execute(self, code: str, timeout: float | None = None) -> ReplResult:
        return ReplResult(await self.context.run(code, timeout_seconds=timeout))

    async def close(self) -> None:
        """Nothing to let go of: the context stays with its sandbox."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
