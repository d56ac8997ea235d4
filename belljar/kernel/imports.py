"""Do something the moment a module is imported, whoever imports it: some libraries need a word from us before the first use."""

from __future__ import annotations

import importlib.machinery
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportWatch:
    """A finder on sys.meta_path that finds as the usual one does, and tells when the module has been executed."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callback] = {}

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def when_imported(self, name: str, callback: Callback) -> None:
        module = sys.modules.get(name)
        if module is not None:
            callback(module)
        else:
            self._waiting[name] = callback

    def find_spec(self, name: str, path: Sequence[str] | None = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        callback = self._waiting.get(name)
        if callback is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        # The loader stays the one that everybody knows how to ask for source and resources; only this call of it is ours.
        execute = spec.loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            if self._waiting.pop(name, None) is not None:
                try:
                    callback(module)
                except Exception:
                    traceback.print_exc()

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
