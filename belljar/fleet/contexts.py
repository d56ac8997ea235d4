"""The code contexts of one sandbox: interpreters that keep their state from cell to cell.

They live in the guest, so that they are in every snapshot and fork, running cells included. What goes wrong inside a cell is
data (`Execution.error`); only a broken sandbox or a malformed call raises.
"""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from belljar.errors import ContextNotFound, InvalidInput
from belljar.fleet.answers import MAX_ID_CHARS, Answer
from belljar.fleet.cell import Callback, Cell, Watch
from belljar.fleet.cell_reader import Budget, parse_variables
from belljar.fleet.checks import check_env, check_fits, check_path, check_text, check_timeout, check_user, check_whole
from belljar.fleet.execution import Execution
from belljar.fleet.process import ANSWER_DEADLINE_S, MAX_PID, LinkProvider
from belljar.fleet.results import Variable
from belljar.wire.languages import ALIASES

# The context that a template has up already, and its language.
DEFAULT_ID, DEFAULT_LANGUAGE = "default", "python"
MAX_CODE_BYTES = 4 * 1024 * 1024
# Longer code travels behind the request instead of in it, where JSON may make six bytes of one.
INLINE_CODE_BYTES = 8 * 1024
MAX_STDIN_BYTES = 64 * 1024
MAX_BUDGET_BYTES = 64 * 1024 * 1024
# Starting a kernel that is not warm, or waiting for a kernel to be started afresh, takes its time under emulation.
START_DEADLINE_S = 180.0

OnDisconnect = Literal["interrupt", "continue"]


@dataclass(frozen=True)
class ContextInfo:
    """A context as `list` shows it. `cells` have been run in it, `queued` are waiting."""

    id: str
    language: str
    created_at: float
    state: str
    cells: int
    queued: int
    default: bool
    pid: int | None


class CodeContext:
    """One interpreter. Its cells run one after the other, in the order in which they were sent."""

    def __init__(self, links: LinkProvider, context_id: str, language: str, watch: Watch | None = None) -> None:
        self._links = links
        self._watch = watch
        self.id = context_id
        self.language = language

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        stdin: str | None = None,
        changes: bool = False,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
        on_error: Callback | None = None,
        on_disconnect: OnDisconnect = "interrupt",
        max_output: int = Budget.output,
        max_results: int = Budget.results,
    ) -> Execution:
        """Run a cell to its end. `timeout_s` counts from its start, and interrupts it; `changes` asks what it left behind.

        Beyond `max_output` bytes of a stream its head and tail come back; beyond `max_results` results become notes. Files in
        the sandbox, which `Execution.truncated` names, then have the whole.
        """
        cell = self.stream(
            code,
            timeout_s=timeout_s,
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
        timeout_s: float | None = None,
        stdin: str | None = None,
        changes: bool = False,
        on_disconnect: OnDisconnect = "interrupt",
        max_output: int = Budget.output,
        max_results: int = Budget.results,
    ) -> Cell:
        """The same, event by event: `async for event in context.stream(...)`."""
        budget = Budget(
            check_whole(max_output, "max_output", 0, MAX_BUDGET_BYTES), check_whole(max_results, "max_results", 0, MAX_BUDGET_BYTES)
        )
        encoded = _check_code(code)
        if on_disconnect not in ("interrupt", "continue"):
            raise InvalidInput(f"on_disconnect must be 'interrupt' or 'continue', not {on_disconnect!r}")
        if not isinstance(changes, bool):
            raise InvalidInput(f"changes must be true or false, not {type(changes).__name__}")
        params: dict[str, Any] = {
            "id": self.id,
            "changes": changes,
            "on_disconnect": on_disconnect,
            "max_output": budget.output,
            "max_results": budget.results,
        }
        if timeout_s is not None:
            params["timeout_s"] = check_timeout(timeout_s)
        if stdin is not None:
            params["stdin"] = _check_stdin(stdin)
        if len(encoded) <= INLINE_CODE_BYTES:
            return Cell(self._links, "context.run", {**params, "code": code}, None, budget, self._watch)
        return Cell(self._links, "context.run", params, encoded, budget, self._watch)

    def attach(self, execution: str | None = None) -> Cell:
        """Follow the running cell, or the last one, from its start; or the one with that id. Leaving does not touch it."""
        params = {"id": self.id}
        if execution is not None:
            params["execution"] = check_text(execution, "execution id", max_bytes=MAX_ID_CHARS)
        return Cell(self._links, "context.attach", params, None, Budget(MAX_BUDGET_BYTES, MAX_BUDGET_BYTES), self._watch)

    async def interrupt(self) -> bool:
        """Stop the running cell and keep the state. False if none was running."""
        return (await self._ask("context.interrupt")).flag("interrupted")

    async def restart(self) -> None:
        """A fresh interpreter under the same id; what it ran and knew is gone."""
        await self._ask("context.restart", START_DEADLINE_S)

    async def delete(self) -> None:
        await self._ask("context.delete")

    async def variables(self) -> list[Variable]:
        """The names that cells have defined (Python). A context that stays busy raises Conflict."""
        return list(parse_variables(await self._ask("context.variables"), "variables"))

    async def _ask(self, op: str, deadline_s: float = ANSWER_DEADLINE_S) -> Answer:
        return Answer(await (await self._links()).request(op, {"id": self.id}, deadline_s), op)


class Contexts:
    """The contexts of one sandbox. `links` attaches to the guest when a call first needs it; `watch` knows what to note."""

    def __init__(self, links: LinkProvider, watch: Watch | None = None) -> None:
        self._links = links
        self._watch = watch
        self._first = {DEFAULT_LANGUAGE: self._context(DEFAULT_ID, DEFAULT_LANGUAGE)}
        self._finding = asyncio.Lock()

    def _context(self, context_id: str, language: str) -> CodeContext:
        return CodeContext(self._links, context_id, language, self._watch)

    async def create(
        self,
        language: str = DEFAULT_LANGUAGE,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> CodeContext:
        """A context of its own. The first plain Python one is the template's, which is warm; unknown languages raise
        NotSupported, which lists what there is."""
        params: dict[str, Any] = {"language": check_text(language, "language", max_bytes=128)}
        if cwd is not None:
            params["cwd"] = check_path(cwd, "cwd")
        if env is not None:
            params["env"] = check_env(env)
        if user is not None:
            params["user"] = check_user(user)
        check_fits(params)
        answer = Answer(await (await self._links()).request("context.create", params, START_DEADLINE_S), "context")
        return self._context(answer.text("id", max_chars=MAX_ID_CHARS), answer.text("language", max_chars=128))

    async def list(self) -> builtins.list[ContextInfo]:
        answer = await (await self._links()).request("context.list", {}, ANSWER_DEADLINE_S)
        return [_parse_info(item) for item in Answer(answer, "list of contexts").objects("contexts")]

    async def get(self, context_id: str) -> CodeContext:
        check_text(context_id, "context id", max_bytes=MAX_ID_CHARS)
        for info in await self.list():
            if info.id == context_id:
                return self._context(info.id, info.language)
        raise ContextNotFound(f"there is no context {context_id!r} in this sandbox; `list` shows those that are there")

    async def languages(self) -> builtins.list[str]:
        """What this sandbox's template can run."""
        answer = await (await self._links()).request("context.languages", {}, ANSWER_DEADLINE_S)
        return Answer(answer, "list of languages").texts("languages")

    def named(self, context_id: str) -> CodeContext:
        """The context with that id, without asking whether there is one: its calls will tell. Its language is not known."""
        return self._context(check_text(context_id, "context id", max_bytes=MAX_ID_CHARS), "")

    async def run(self, code: str, language: str = DEFAULT_LANGUAGE, **options: Any) -> Execution:
        """A cell in the first context of that language; one is created if there is none. Options as for CodeContext.run."""
        try:
            return await (await self.first(language)).run(code, **options)
        except ContextNotFound:  # it never ran: the context was deleted, or this template brings none
            return await (await self.first(language, again=True)).run(code, **options)

    async def first(self, language: str = DEFAULT_LANGUAGE, *, again: bool = False) -> CodeContext:
        """The first context of that language; one is created if there is none. Without `again` it may have been deleted since."""
        check_text(language, "language", max_bytes=128)
        language = plain_name(language)
        if not again and language in self._first:
            return self._first[language]
        async with self._finding:  # of two who miss it at once, only one makes it
            found = self._first[language] = await self._find_first(language)
        return found

    async def _find_first(self, language: str) -> CodeContext:
        for info in await self.list():
            if info.language == language:
                return self._context(info.id, info.language)
        return await self.create(language)


def plain_name(language: str) -> str:
    """Other names of a language mean the same one. Kernels of Jupyter have names of their own, in which case counts."""
    lowered = language.lower()
    return ALIASES.get(lowered, lowered if lowered in ALIASES.values() else language)


def _check_code(code: object) -> bytes:
    if not isinstance(code, str):
        raise InvalidInput(f"code must be text, not {type(code).__name__}")
    try:
        encoded = code.encode()
    except UnicodeEncodeError:
        raise InvalidInput("code contains half a surrogate pair, which is no Unicode text") from None
    if len(encoded) > MAX_CODE_BYTES:
        raise InvalidInput(
            f"code has {len(encoded)} bytes, and at most {MAX_CODE_BYTES} are possible; write the data to a file first"
        )
    return encoded


def _check_stdin(stdin: object) -> str:
    if not isinstance(stdin, str):
        raise InvalidInput(f"stdin must be text, not {type(stdin).__name__}")
    size = len(json.dumps(stdin))
    if size > MAX_STDIN_BYTES - 1024:
        raise InvalidInput(f"stdin takes {size} bytes, and at most {MAX_STDIN_BYTES - 1024} fit; write the data to a file first")
    return stdin


def _parse_info(item: Answer) -> ContextInfo:
    return ContextInfo(
        id=item.text("id", max_chars=MAX_ID_CHARS),
        language=item.text("language", max_chars=128),
        created_at=item.number("created_at"),
        state=item.one_of("state", "idle", "busy", "starting"),
        cells=item.whole("cells"),
        queued=item.whole("queued"),
        default=item.flag("default"),
        pid=item.optional_whole("pid", 1, MAX_PID),
    )
