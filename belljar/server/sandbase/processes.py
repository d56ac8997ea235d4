"""Programs with their arguments, run to the end. Not a shell line: `cmd` is the program's name alone."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import Response

from belljar.errors import CommandNotFound, DeadlineExceeded
from belljar.server.answers import answer
from belljar.server.asking import read_fields
from belljar.server.auth import workspace_of
from belljar.server.declaring import call
from belljar.server.operation import OF_A_COMMAND
from belljar.server.patience import patiently
from belljar.server.problems import RunFailed
from belljar.server.shapes import answered, environment, guest_text, listing, number, record, text, whole
from belljar.service.running import run_command

DEFAULT_TIMEOUT_S = 60.0
WORKDIR = "/home/user"
FAILING = "A program that cannot be started, or that takes too long, is a 502."

RUN = record(
    {"cmd": guest_text("The program.", examples=["python3"])},
    {
        "args": listing(guest_text(empty=True), "Its arguments."),
        "envVars": environment(),
        "cwd": guest_text("The folder that it runs in.", default=WORKDIR),
        "timeout": number("Seconds; more than 0.", default=DEFAULT_TIMEOUT_S),
    },
)
RESULT = answered(
    {"processID": text(), "stdout": text(empty=True, nul=True), "stderr": text(empty=True, nul=True), "exitCode": whole(high=255)}
)


async def run(request: Request) -> Response:
    fields = await read_fields(request)
    work = run_command(
        workspace_of(request),
        request.path_params["id"],
        [fields.text("cmd"), *fields.texts("args")],
        fields.number("timeout", DEFAULT_TIMEOUT_S),
        cwd=fields.text("cwd", WORKDIR),
        env=fields.labels("envVars"),
    )
    try:
        result = await patiently(request, work, cancel=True)
    except (CommandNotFound, DeadlineExceeded) as problem:
        raise RunFailed(problem.message) from problem
    return answer(
        {
            "processID": f"proc-{secrets.token_hex(8)}",
            "stdout": result.stdout_text,
            "stderr": result.stderr_text,
            "exitCode": result.exit_code if result.exit_code is not None else 128 + (result.signal or 0),
        }
    )


ROUTES = [
    call("POST", "/sandboxes/{id}/processes", run, "Run a program", about=FAILING, body=RUN, gives=RESULT, errors=OF_A_COMMAND)
]
