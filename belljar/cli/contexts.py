"""`belljar code` and `belljar contexts`: cells in the interpreters of a sandbox that is there already."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.cli.opening import add_json, open_fleet
from belljar.cli.render import one_line, render_bytes, render_json, render_since, render_table
from belljar.errors import InvalidInput

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.fleet.execution import Execution
    from belljar.fleet.results import Result

LANGUAGES = {".sh": "bash", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript"}
PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "application/pdf": "pdf"}
TIMED_OUT = 124  # what `timeout` of coreutils returns


def register(commands: Commands) -> None:
    code = commands.add_parser(
        "code",
        help="run a cell in a sandbox; its context keeps its state for the next one",
        description="Exit code 1 if the cell failed, 124 if its time ran out.",
    )
    code.add_argument("sandbox", metavar="ID")
    what = code.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", metavar="FILE", help="code to run; - reads it from stdin")
    what.add_argument("-c", "--code", help="the code itself")
    code.add_argument("--language", help="default: by the file's name, else python")
    code.add_argument("--context", metavar="C", help="as `belljar contexts ID` shows it; default: the first of the language")
    code.add_argument("--timeout", type=float, metavar="S", help="interrupt it after so many seconds; the state stays")
    code.add_argument("--save", metavar="DIR", help="write the pictures that it shows to files there")
    add_json(code)
    code.set_defaults(handler=run_cell)

    contexts = commands.add_parser("contexts", help="list the code contexts of a sandbox")
    contexts.add_argument("sandbox", metavar="ID")
    add_json(contexts)
    contexts.set_defaults(handler=list_contexts)


async def run_cell(args: argparse.Namespace) -> int:
    if args.context is not None and args.language is not None:
        raise InvalidInput("--context and --language exclude each other; a context has its language")
    code = args.code if args.code is not None else sys.stdin.read() if args.file == "-" else _read(Path(args.file))
    language = args.language or LANGUAGES.get(Path(args.file or "").suffix, "python")
    folder = _check_folder(Path(args.save)) if args.save is not None else None
    callbacks: dict[str, Any] = {} if args.json else {"on_stdout": _out, "on_stderr": _err, "on_result": _show}
    async with open_fleet() as fleet:
        contexts = (await fleet.get(args.sandbox)).contexts
        if args.context is not None:
            execution = await (await contexts.get(args.context)).run(code, timeout_s=args.timeout, **callbacks)
        else:
            execution = await contexts.run(code, language, timeout_s=args.timeout, **callbacks)
    if folder is not None:
        _save(execution, folder)
    if args.json:
        print(render_json(execution.to_json()))
    else:
        _explain(execution)
    if execution.error is None:
        return 0
    return TIMED_OUT if execution.error.kind == "timeout" else 1


async def list_contexts(args: argparse.Namespace) -> int:
    async with open_fleet() as fleet:
        found = await (await fleet.get(args.sandbox)).contexts.list()
    if args.json:
        print(render_json(found))
    else:
        rows = [(c.id, c.language, c.state, c.cells, c.queued, render_since(c.created_at), c.pid) for c in found]
        print(render_table(("ID", "LANGUAGE", "STATE", "CELLS", "QUEUED", "AGE", "PID"), rows))
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"{path} cannot be read as code: {problem}") from None


def _check_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; make it first")
    return folder


def _out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _err(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _show(result: Result) -> None:
    _out(f"{result.text or ', '.join(result.data)}\n")


def _save(execution: Execution, folder: Path) -> None:
    pictures = [(mime, data) for result in execution.results for mime, data in result.data.items() if mime in PICTURES]
    for number, (mime, data) in enumerate(pictures, 1):
        path = folder / f"cell-{execution.count or 0}-{number}.{PICTURES[mime]}"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        print(f"belljar: saved {path}", file=sys.stderr)


def _explain(execution: Execution) -> None:
    """The error as the interpreter tells it, and what a reader of the output could not know."""
    if error := execution.error:
        for line in error.traceback or (str(error),):
            _err(f"{line}\n")
        if error.kind != "exception":
            peak = f", {render_bytes(error.peak_memory_bytes)} at the peak" if error.peak_memory_bytes is not None else ""
            state = " (the context was started afresh, its variables are gone)" if error.state_lost else ""
            _err(f"belljar: {error.kind.replace('_', ' ')}{peak}: {one_line(error.value)}{state}\n")
    for note in execution.notes:
        _err(f"belljar: {one_line(note)}\n")
    for name in ("stdout", "stderr", "results"):
        if cut := getattr(execution.truncated, name):
            whole = f"; the whole is in {one_line(', '.join(cut.files))} in the sandbox" if cut.files and cut.complete else ""
            _err(f"belljar: {cut.omitted} bytes of {name} were left out{whole}\n")
