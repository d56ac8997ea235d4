"""What a cell shows: the value of its last expression, and everything handed to display(), as events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter

from belljar.kernel.bundle import pack, render_json

Send = Callable[[dict[str, Any], bytes], None]
MAX_METADATA = 64 * 1024
_TEXT_ONLY = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset})


def output_event(
    data: dict[str, Any], metadata: dict[str, Any] | None, main: bool, transient: dict[str, Any] | None = None, update: bool = False
) -> tuple[dict[str, Any], bytes]:
    parts, blob = pack(data)
    display_id = (transient or {}).get("display_id")
    event = {
        "ev": "output",
        "main": main,
        "parts": parts,
        "metadata": _plain_metadata(metadata),
        "display_id": None if display_id is None else str(display_id),
        "update": bool(update),
    }
    return event, blob


def _plain_metadata(metadata: dict[str, Any] | None) -> dict[str, Any]:
    if not metadata:
        return {}
    rendered = render_json(metadata)
    return json.loads(rendered) if len(rendered) <= MAX_METADATA else {}


class Formatter(DisplayFormatter):
    """IPython's, which asks eleven formatters about every value. Of plain values it is known that they only have a text."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        kind = type(obj)
        if kind in _TEXT_ONLY and include is None and exclude is None:
            formatters = self.formatters
            if not any(kind in formatter.type_printers for mime, formatter in formatters.items() if mime != "text/plain"):
                text = formatters["text/plain"](obj)
                return ({} if text is None else {"text/plain": text}), {}
        return super().format(obj, include=include, exclude=exclude)  # type: ignore[no-any-return]


class ResultHook(DisplayHook):
    """The value of the last expression becomes the main output."""

    # True while the value is being formatted: objects that then display themselves are the main output too.
    showing_main = False

    def quiet(self) -> bool:
        # The whole cell is tokenized for this, so ask the cheap question first.
        source = self.shell.history_manager.input_hist_parsed[-1] if self.shell.counting else ""
        return ";" in source and bool(self.semicolon_at_end_of_expression(source))

    def write_output_prompt(self) -> None:
        pass

    def compute_format_data(self, result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.showing_main = True
        try:
            return super().compute_format_data(result)  # type: ignore[no-any-return]
        finally:
            self.showing_main = False

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        self.shell.send(*output_event(format_dict, md_dict, main=True))

    def update_user_ns(self, result: Any) -> None:
        if self.shell.counting:
            super().update_user_ns(result)

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """Would keep every output of the session in memory."""

    def finish_displayhook(self) -> None:
        self._is_active = False


class Publisher(DisplayPublisher):
    """display(), update_display() and clear_output()."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        main = self.shell.displayhook.showing_main and not update
        self.shell.send(*output_event(data, metadata, main, transient, update))

    def clear_output(self, wait: bool = False) -> None:
        self.shell.send({"ev": "clear", "wait": bool(wait)}, b"")
