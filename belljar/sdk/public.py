"""Every name of the client, in one place: `from belljar import …` finds it here."""

from __future__ import annotations

from belljar.errors import BelljarError
from belljar.sdk._async.client import AsyncClient
from belljar.sdk._async.client import get_default_client as get_default_async_client
from belljar.sdk._async.client import set_default_client as set_default_async_client
from belljar.sdk._async.connection import AsyncConnection
from belljar.sdk._async.contexts import AsyncCell, AsyncCodeContext
from belljar.sdk._async.explore import explore as async_explore
from belljar.sdk._async.filesystem import AsyncSandboxFilesystem
from belljar.sdk._async.process import AsyncForegroundProcess, AsyncProcess
from belljar.sdk._async.sandbox import AsyncSandbox
from belljar.sdk._async.streaming import AsyncStream
from belljar.sdk._async.terminal import AsyncTerminal
from belljar.sdk._sync.client import Client, TemplatesAPI, get_default_client, set_default_client
from belljar.sdk._sync.connection import Connection
from belljar.sdk._sync.contexts import Cell, CodeContext
from belljar.sdk._sync.explore import explore
from belljar.sdk._sync.filesystem import SandboxFilesystem
from belljar.sdk._sync.process import ForegroundProcess, Process
from belljar.sdk._sync.running import SandboxCommands
from belljar.sdk._sync.sandbox import Sandbox
from belljar.sdk._sync.snapshots import SnapshotsAPI
from belljar.sdk._sync.streaming import Stream
from belljar.sdk._sync.terminal import Terminal
from belljar.sdk.cells import Clear, Done, Failure, Output, Started, Stderr, Stdout
from belljar.sdk.errors import (
    APIConnectionError,
    AuthError,
    BadRequestError,
    CommandFailed,
    ConnectionError,
    CreateCancelled,
    ExecInterrupted,
    ExploreError,
    NotFoundError,
    PandastackError,
    SandboxTimeout,
    ServerError,
    TemplateBuildError,
)
from belljar.sdk.exploring import BranchOutcome, Candidate, ExploreResult
from belljar.sdk.outputs import Chunk, ProcessExit, ProcessInfo, ProcessResult
from belljar.sdk.requests import own_version
from belljar.sdk.results import Execution, ExecutionError, Result
from belljar.sdk.retrying import CreateRetryEvent
from belljar.sdk.unserved import Volume
from belljar.sdk.values import (
    ContextInfo,
    ExecResult,
    FileChange,
    FileInfo,
    SandboxEvent,
    Snapshot,
    Template,
    Token,
    Transfer,
    Variable,
)

__version__ = own_version()

__all__ = [
    "APIConnectionError",
    "AsyncCell",
    "AsyncClient",
    "AsyncCodeContext",
    "AsyncConnection",
    "AsyncForegroundProcess",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxFilesystem",
    "AsyncStream",
    "AsyncTerminal",
    "AuthError",
    "BadRequestError",
    "BelljarError",
    "BranchOutcome",
    "Candidate",
    "Cell",
    "Chunk",
    "Clear",
    "Client",
    "CodeContext",
    "CommandFailed",
    "Connection",
    "ConnectionError",
    "ContextInfo",
    "CreateCancelled",
    "CreateRetryEvent",
    "Done",
    "ExecInterrupted",
    "ExecResult",
    "Execution",
    "ExecutionError",
    "ExploreError",
    "ExploreResult",
    "Failure",
    "FileChange",
    "FileInfo",
    "ForegroundProcess",
    "NotFoundError",
    "Output",
    "PandastackError",
    "Process",
    "ProcessExit",
    "ProcessInfo",
    "ProcessResult",
    "Result",
    "Sandbox",
    "SandboxCommands",
    "SandboxEvent",
    "SandboxFilesystem",
    "SandboxTimeout",
    "ServerError",
    "Snapshot",
    "SnapshotsAPI",
    "Started",
    "Stderr",
    "Stdout",
    "Stream",
    "Template",
    "TemplateBuildError",
    "TemplatesAPI",
    "Terminal",
    "Token",
    "Transfer",
    "Variable",
    "Volume",
    "__version__",
    "async_explore",
    "explore",
    "get_default_async_client",
    "get_default_client",
    "set_default_async_client",
    "set_default_client",
]
