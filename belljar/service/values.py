"""The values that callers of the service see, gathered in one place: whoever renders them need not know the layers below."""

from __future__ import annotations

from belljar.egress.policy import MAX_CONNECTIONS as MAX_EGRESS_CONNECTIONS
from belljar.egress.secrets import MAX_VALUE_CHARS as MAX_SECRET_CHARS
from belljar.fleet import execution as cell_events
from belljar.fleet.contexts import ContextInfo
from belljar.fleet.execution import Event as CellEvent
from belljar.fleet.execution import Execution
from belljar.fleet.files import FileEntry, FileEvent
from belljar.fleet.ports import MAX_PORT, PortStream
from belljar.fleet.process import Dropped, Exit, Output, Process, PtySize
from belljar.fleet.processes import ProcessInfo, ProcessResult
from belljar.fleet.results import Result
from belljar.fleet.sandbox import Sandbox
from belljar.service.logs import Line
from belljar.store.db import SandboxRecord, SnapshotRecord
from belljar.store.events import EventRecord
from belljar.store.pages import Page, Place
from belljar.store.quotas import QuotaRecord
from belljar.store.tokens import TokenRecord
from belljar.templates.bake import TemplateInfo

__all__ = [
    "MAX_EGRESS_CONNECTIONS",
    "MAX_PORT",
    "MAX_SECRET_CHARS",
    "CellEvent",
    "ContextInfo",
    "Dropped",
    "EventRecord",
    "Execution",
    "Exit",
    "FileEntry",
    "FileEvent",
    "Line",
    "Output",
    "Page",
    "Place",
    "PortStream",
    "Process",
    "ProcessInfo",
    "ProcessResult",
    "PtySize",
    "QuotaRecord",
    "Result",
    "Sandbox",
    "SandboxRecord",
    "SnapshotRecord",
    "TemplateInfo",
    "TokenRecord",
    "cell_events",
]
