"""Processes: started in the background, run in the foreground, followed, fed, signalled."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import Conflict, InvalidInput, ProcessNotFound
from belljar.server.answers import answer, event_stream, nothing, sse, timestamp
from belljar.server.asking import Fields, body_of, query_flag, query_of, query_whole, read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import MAX_CODE_JSON_BYTES, OF_A_COMMAND, OF_A_GUEST, events, raw
from belljar.server.patience import patiently
from belljar.server.shapes import (
    TIME,
    answered,
    either,
    environment,
    flag,
    listing,
    maybe,
    number,
    record,
    switch,
    text,
    whole,
)
from belljar.server.telling import last_words
from belljar.service import processes
from belljar.service.processes import Joined, Launch, Piece, Step
from belljar.service.values import Dropped, Exit, ProcessInfo, PtySize

SIZE = {"rows": whole(low=1, high=65535), "cols": whole(low=1, high=65535)}
START = {
    "cmd": text("A line for the shell; or give `argv`."),
    "argv": listing(text(empty=True), "A program and its arguments.", least=1),
    "cwd": text("The folder to start in."),
    "env": environment(),
    "user": text("Who runs it; the template's user by default.", most=256),
    "stdin": flag("Whether its input can be written to later; a terminal's always can."),
    "pty": record(SIZE, about="A terminal of that size. Its output is all stdout."),
    "timeout_seconds": number("It is killed after so long."),
}
INPUT = {"input": text("Its whole input.", empty=True, nul=True), "input_base64": text("The same for bytes.", empty=True)}
PROCESS = answered(
    {
        "id": text(),
        "pid": whole(),
        "argv": listing(text(empty=True)),
        "command": text("`argv` in one line.", empty=True),
        "cwd": text(empty=True),
        "user": text(empty=True),
        "started_at": TIME,
        "running": flag(),
        "exit_code": maybe(whole()),
        "signal": maybe(whole()),
        "background": flag(),
        "pty": flag(),
        "stdout_bytes": whole("Written in all."),
        "stderr_bytes": whole(),
    },
    name="Process",
)
DROPPED = answered({"stdout": whole(), "stderr": whole()}, "Bytes that were written and are no longer kept.")
OUTPUT = answered({"data": text("Base64.", empty=True), "offset": whole("The place of its first byte in its stream.")})
STEPS = {
    "stdout": OUTPUT,
    "stderr": OUTPUT,
    "exit": answered(
        {
            "exit_code": maybe(whole()),
            "signal": maybe(whole()),
            "timed_out": flag(),
            "oom_killed": flag(),
            "duration_seconds": number(),
            "dropped": DROPPED,
        }
    ),
    "error": answered({"error": text(), "code": text()}, "The stream broke; nothing follows."),
}
STARTED = answered({"id": text(), "pid": whole()})
ATTACHED = answered({"id": text(), "pid": whole(), "stdout_offset": whole(), "stderr_offset": whole(), "dropped": DROPPED})
OF_A_PROCESS = (*OF_A_GUEST, ProcessNotFound)


def render_process(info: ProcessInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "pid": info.pid,
        "argv": list(info.argv),
        "command": " ".join(info.argv),
        "cwd": info.cwd,
        "user": info.user,
        "started_at": timestamp(info.started_at),
        "running": info.running,
        "exit_code": info.exit_code,
        "signal": info.signal,
        "background": info.background,
        "pty": info.pty,
        "stdout_bytes": info.stdout_bytes,
        "stderr_bytes": info.stderr_bytes,
    }


def parse_launch(fields: Fields) -> Launch:
    if ("cmd" in fields) == ("argv" in fields):
        raise InvalidInput("give either cmd, a line for the shell, or argv, a program and its arguments")
    size = fields.value("pty")
    return Launch(
        fields.text("cmd") if "cmd" in fields else fields.texts("argv"),
        cwd=fields.optional_text("cwd"),
        env=fields.labels("env") or None,
        user=fields.optional_text("user"),
        stdin=fields.flag("stdin"),
        pty=PtySize(size["rows"], size["cols"]) if size is not None else None,
        timeout_s=fields.value("timeout_seconds"),
    )


def _parse_input(fields: Fields) -> bytes | None:
    if "input" in fields and "input_base64" in fields:
        raise InvalidInput("give either input or input_base64, not both")
    if "input_base64" in fields:
        try:
            return base64.b64decode(fields.text("input_base64", ""), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput("input_base64 is not base64") from None
    return fields.text("input", "").encode("utf-8", "surrogatepass") if "input" in fields else None


async def start(request: Request) -> Response:
    launch = parse_launch(await read_fields(request))
    info = await patiently(request, processes.start(workspace_of(request), request.path_params["id"], launch))
    return answer(render_process(info), 201)


async def list_all(request: Request) -> Response:
    found = await processes.list_all(workspace_of(request), request.path_params["id"])
    return answer({"processes": [render_process(info) for info in found]})


async def get(request: Request) -> Response:
    path = request.path_params
    return answer(render_process(await processes.find(workspace_of(request), path["id"], path["process"])))


async def run(request: Request) -> Response:
    fields = await read_fields(request)
    launch, given = parse_launch(fields), _parse_input(fields)
    steps = processes.run(workspace_of(request), request.path_params["id"], launch, given)
    return await event_stream(_events(steps, "started"), last_words(request, "error"))


async def follow(request: Request) -> Response:
    path, offsets = request.path_params, [_offset(request, f"{stream}_offset") for stream in ("stdout", "stderr")]
    steps = processes.follow(workspace_of(request), path["id"], path["process"], *offsets)
    return await event_stream(_events(steps, "attached"), last_words(request, "error"), endless=True)


def _offset(request: Request, name: str) -> int | None:
    return query_whole(request, name, 0) if query_of(request).get(name) else None


async def _events(steps: AsyncGenerator[Step, None], first: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        async for step in steps:
            match step:
                case Joined():
                    yield sse(first, _render_joined(step, first))
                case Piece(stream, offset, data):
                    yield sse(stream, {"data": base64.b64encode(data).decode(), "offset": offset})
                case Exit():
                    yield sse("exit", _render_exit(step))


def _render_joined(joined: Joined, event: str) -> dict[str, Any]:
    who = {"id": joined.id, "pid": joined.pid}
    if event == "started":
        return who
    offsets = {"stdout_offset": joined.stdout_offset, "stderr_offset": joined.stderr_offset}
    return {**who, **offsets, "dropped": _render_dropped(joined.dropped)}


def _render_exit(ended: Exit) -> dict[str, Any]:
    return {
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "timed_out": ended.timed_out,
        "oom_killed": ended.oom_killed,
        "duration_seconds": ended.duration_s,
        "dropped": _render_dropped(ended.dropped),
    }


def _render_dropped(dropped: Dropped) -> dict[str, int]:
    return {"stdout": dropped.stdout, "stderr": dropped.stderr}


async def write(request: Request) -> Response:
    path, eof = request.path_params, query_flag(request, "eof")
    await processes.write(workspace_of(request), path["id"], path["process"], body_of(request), eof=eof)
    return nothing()


async def signal(request: Request) -> Response:
    fields, path = await read_fields(request), request.path_params
    wanted, tree = fields.value("signal"), fields.flag("tree")
    async with workspace_of(request).guest(path["id"]) as sandbox:
        await sandbox.processes.signal(path["process"], wanted, tree=tree)
    return nothing()


async def resize(request: Request) -> Response:
    fields, path = await read_fields(request), request.path_params
    size = PtySize(fields.whole("rows"), fields.whole("cols"))
    async with workspace_of(request).guest(path["id"]) as sandbox:
        await sandbox.processes.resize(path["process"], size)
    return nothing()


async def kill(request: Request) -> Response:
    path = request.path_params
    async with workspace_of(request).guest(path["id"]) as sandbox:
        await sandbox.processes.kill(path["process"])
    return nothing()


ALL, ONE = "/sandboxes/{id}/processes", "/sandboxes/{id}/processes/{process}"
OFFSET = whole("Where to go on reading; from the oldest byte kept by default.")
SIGNAL = either(text("A name.", most=40), whole("A number.", 1, 64))

ROUTES = [
    call(
        "POST",
        ALL,
        start,
        "Start a process in the background",
        about="It outlives this call, and keeps the newest 1 MiB of each stream for whoever follows it.",
        body=record({}, START),
        gives=PROCESS,
        status=201,
        errors=(*OF_A_COMMAND, Conflict),
    ),
    call("GET", ALL, list_all, "List processes", gives=answered({"processes": listing(PROCESS)}), errors=OF_A_GUEST),
    call(
        "POST",
        f"{ALL}/run",
        run,
        "Run a process, and stream what it writes",
        about="In the foreground: a client that leaves ends it, with all that came of it.",
        body=record({}, {**START, **INPUT}),
        max_body=MAX_CODE_JSON_BYTES,
        gives=events("", started=STARTED, **STEPS),
        errors=(*OF_A_COMMAND, Conflict),
    ),
    call("GET", ONE, get, "Look at a process", gives=PROCESS, errors=OF_A_PROCESS),
    call(
        "GET",
        f"{ONE}/output",
        follow,
        "Follow what a process writes",
        about="Takes over from whoever followed it before. A client that leaves only lets go.",
        query=record({}, {"stdout_offset": OFFSET, "stderr_offset": OFFSET}),
        gives=events("", attached=ATTACHED, **STEPS),
        errors=OF_A_PROCESS,
    ),
    call(
        "POST",
        f"{ONE}/stdin",
        write,
        "Write to a process's input",
        query=record({}, {"eof": switch("Close it afterwards.")}),
        body=raw("What to write."),
        errors=(*OF_A_PROCESS, Conflict),
    ),
    call(
        "POST",
        f"{ONE}/signal",
        signal,
        "Send a signal",
        body=record({"signal": SIGNAL}, {"tree": flag("To every process that came of it, too.")}),
        errors=(*OF_A_PROCESS, Conflict),
    ),
    call("POST", f"{ONE}/resize", resize, "Resize a terminal", body=record(SIZE), errors=(*OF_A_PROCESS, Conflict)),
    call("DELETE", ONE, kill, "Kill a process and all that came of it", errors=OF_A_PROCESS),
]
