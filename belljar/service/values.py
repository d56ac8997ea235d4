"""The values that callers of the service see, gathered in one place: whoever renders them need not know the layers below."""

from __future__ import annotations

from belljar.fleet.contexts import ContextInfo
from belljar.fleet.execution import Execution
from belljar.fleet.files import FileEntry
from belljar.fleet.ports import MAX_PORT, PortStream
from belljar.fleet.process import Output
from belljar.fleet.processes import ProcessResult
from belljar.fleet.results import Result
from belljar.fleet.sandbox import Sandbox
from belljar.store.db import SandboxRecord, SnapshotRecord
from belljar.store.events import EventRecord
from belljar.store.tokens import TokenRecord
from belljar.templates.bake import TemplateInfo

__all__ = [
    "MAX_PORT",
    "ContextInfo",
    "EventRecord",
    "Execution",
    "FileEntry",
    "Output",
    "PortStream",
    "ProcessResult",
    "Result",
    "Sandbox",
    "SandboxRecord",
    "SnapshotRecord",
    "TemplateInfo",
    "TokenRecord",
]
