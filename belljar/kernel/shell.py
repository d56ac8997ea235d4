"""IPython's shell without a terminal: no colours, no history on disk, and everything it shows becomes an event."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import subprocess
import sys
import warnings
from typing import Any

from IPython.core.autocall import ExitAutocall
from IPython.core.error import UsageError
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type, default

from belljar.kernel import stdin
from belljar.kernel.awaiting import Runner, needs_loop
from belljar.kernel.control import Control
from belljar.kernel.display import Formatter, Publisher, ResultHook
from belljar.kernel.failures import error_event, plain_traceback, without_own_frames
from belljar.kernel.interrupts import Gate


class Exit(ExitAutocall):
    """exit and quit in a cell: what sys.exit is, with or without a code."""

    def __call__(self, code: Any = None) -> None:
        raise SystemExit(code)


class PythonShell(InteractiveShell):
    """The shell of a Python context. It is made before the fork; `control` comes after it."""

    displayhook_class = Type(ResultHook)
    display_pub_class = Type(Publisher)
    # Libraries that ask whether this is a notebook look for the attribute; those that would talk to a Jupyter kernel look into it.
    kernel = None

    def __init__(self, gate: Gate, **kwargs: Any) -> None:
        self.gate = gate
        self.control: Control | None = None
        self.counting = True
        self.failure: dict[str, Any] | None = None
        self.runner = Runner(gate)
        super().__init__(colors="nocolor", xmode="Context", warn_venv=False, **kwargs)
        self.loop_runner = self.runner
        stdin.install()
        warnings.filterwarnings("ignore", message="To exit: use 'exit'", module=r"IPython\.")
        warnings.filterwarnings("ignore", message="Output cache limit", module=r"IPython\.")

    @default("exiter")
    def _exiter_default(self) -> Exit:
        return Exit(self)

    def init_history(self) -> None:
        self.history_manager = HistoryManager(shell=self, parent=self, enabled=False, hist_file=":memory:")
        self.configurables.append(self.history_manager)

    def init_display_formatter(self) -> None:
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def _tee(self, channel: str) -> contextlib.AbstractContextManager[None]:
        """Would keep everything that is printed in memory."""
        return contextlib.nullcontext()

    def _format_exception_for_storage(self, exception: BaseException, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Would format every traceback a second time, for a history that nobody reads."""
        return {}

    def run(self, code: str, count: bool) -> None:
        """One cell. What it raised is in `failure` then."""
        self.failure = None
        self.counting = count
        self.run_cell(code, store_history=count)
        self.history_manager.db_input_cache.clear()  # waits for a database that there is not

    def forget(self) -> None:
        """As if no cell had ever run. Only before the fork: a loop cannot be shared."""
        if self.runner.loop is not None:
            self.runner.loop.close()
            self.runner.loop = None
            asyncio.set_event_loop_policy(None)  # a policy that has had a loop would not make another
        self.reset(new_session=True)
        self.user_ns.update(__doc__=None, __loader__=None, __package__=None, __spec__=None)
        self.failure = None
        for name in ("last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)

    def should_run_async(self, raw_cell: str, *, transformed_cell: str | None = None, preprocessing_exc_tuple: Any = None) -> bool:
        decided = super().should_run_async(
            raw_cell, transformed_cell=transformed_cell, preprocessing_exc_tuple=preprocessing_exc_tuple
        )
        return decided or (preprocessing_exc_tuple is None and self.autoawait and needs_loop(raw_cell))

    def send(self, event: dict[str, Any], blob: bytes) -> None:
        if self.control is not None:  # None while the zygote warms up
            event["n"] = self.control.n
            self.control.send(event, blob)

    # What went wrong

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        with self.gate:
            try:
                kind, value, tb = self._get_exc_info(exc_tuple)
            except ValueError:
                print("No traceback available to show.", file=sys.stderr)
                return
            if self.runner.cancelled and kind.__name__ == "CancelledError":
                kind, value = KeyboardInterrupt, KeyboardInterrupt()
            if issubclass(kind, SyntaxError):
                self.showsyntaxerror(filename, running_compiled_code)
            elif issubclass(kind, UsageError):
                self.show_usage_error(value)
            elif issubclass(kind, SystemExit):
                self._showtraceback(kind, value, [f"SystemExit: {value.code}"])
            else:
                self._showtraceback(kind, value, self._format(kind, value, without_own_frames(tb), tb_offset))

    def _format(self, kind: type[BaseException], value: BaseException, tb: Any, tb_offset: int | None) -> list[str]:
        if tb is None or _holds_group(value):  # of groups IPython shows nothing
            return plain_traceback(kind, value, tb)
        try:
            if hasattr(value, "_render_traceback_"):
                return [str(line) for line in value._render_traceback_()]
            return self.InteractiveTB.structured_traceback(kind, value, tb, tb_offset=tb_offset)  # type: ignore[no-any-return]
        except Exception:
            return plain_traceback(kind, value, tb)

    def show_usage_error(self, exc: BaseException) -> None:
        self._showtraceback(UsageError, exc, [f"UsageError: {exc}"])

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.failure = error_event(etype, evalue, stb)

    # What runs outside this process

    def system(self, cmd: str) -> None:
        """`!command`: straight to the context's own stdout and stderr. An interrupt stops the cell, not only the command."""
        sys.stdout.flush()
        sys.stderr.flush()
        command = self.var_expand(cmd, depth=1)
        try:
            code = subprocess.call(command, shell=True, executable=os.environ.get("SHELL"), stdin=subprocess.DEVNULL)  # noqa: S602
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # without the frames that waited
        self.user_ns["_exit_code"] = code
        importlib.invalidate_caches()  # it may have been pip
        if self.system_raise_on_error and code:
            raise subprocess.CalledProcessError(code, cmd)

    system_raw = system_piped = system

    def enable_gui(self, gui: str | None = None) -> None:
        """There is no screen."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str, str]:
        """`%matplotlib` with any argument: figures are shown after each cell under every backend, so there is nothing to do."""
        import matplotlib

        return "inline", matplotlib.get_backend()


def _holds_group(value: BaseException | None) -> bool:
    seen = 0
    while value is not None and seen < 100:
        if isinstance(value, BaseExceptionGroup):
            return True
        value, seen = value.__cause__ or value.__context__, seen + 1
    return False
