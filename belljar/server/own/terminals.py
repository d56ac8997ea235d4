"""Terminals over WebSockets: a shell of one's own, and processes that are there already.

Bytes are bytes in both directions. Text from the client is a wish: {"resize": {"rows", "cols"}}, {"signal": name or number} or
{"stdin_eof": true}. Text from the server is the last word: {"exit": code} or {"error", "code"}.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.websockets import WebSocket

from belljar.errors import CommandNotFound, Conflict, InvalidInput, ProcessNotFound
from belljar.server.asking import query_of, query_whole
from belljar.server.auth import workspace_of
from belljar.server.declaring import socket
from belljar.server.operation import OF_A_COMMAND, OF_A_GUEST
from belljar.server.shapes import guest_text, record, whole
from belljar.server.sockets import end_with, receive, send
from belljar.service import processes
from belljar.service.processes import Piece, Step
from belljar.service.values import Exit, Process, PtySize

ROWS, COLS, MAX_SIDE = 24, 80, 65535
# The user's own shell, with what a login brings.
SHELL = 'exec "${SHELL:-/bin/sh}" -l'
# Messages of input that wait while the process does not read. While there is room, a client that leaves is noticed at once.
WAITING = 64


async def open_terminal(websocket: WebSocket) -> None:
    given = query_of(websocket)
    size = PtySize(query_whole(websocket, "rows", ROWS), query_whole(websocket, "cols", COLS))
    command, cwd, user = given.get("cmd") or SHELL, given.get("cwd") or None, given.get("user") or None
    async with (
        workspace_of(websocket).guest(websocket.path_params["id"], "stream") as sandbox,
        await sandbox.processes.start(command, cwd=cwd, user=user, pty=size) as process,
        aclosing(processes.steps_of(process)) as steps,
    ):
        await websocket.accept()
        await _converse(websocket, process, steps)


async def attach(websocket: WebSocket) -> None:
    path = websocket.path_params
    async with processes.joined(workspace_of(websocket), path["id"], path["process"]) as (process, steps):
        await websocket.accept()
        await _converse(websocket, process, steps)


async def _converse(websocket: WebSocket, process: Process, steps: AsyncGenerator[Step, None]) -> None:
    """Both directions, until the process has ended or the client is gone."""
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
    directions = [
        asyncio.create_task(_listen(websocket, process, waiting)),
        asyncio.create_task(_write(process, waiting)),
        asyncio.create_task(_tell(websocket, steps)),
    ]
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _tell(websocket: WebSocket, steps: AsyncGenerator[Step, None]) -> None:
    async for step in steps:
        if isinstance(step, Piece):
            await send(websocket, step.data)
        elif isinstance(step, Exit):
            await end_with(websocket, {"exit": step.shell_code})


async def _listen(websocket: WebSocket, process: Process, waiting: asyncio.Queue[bytes | None]) -> None:
    while True:
        message = await receive(websocket)
        if isinstance(message, bytes):
            await waiting.put(message)
        elif message.get("stdin_eof") is True:
            await waiting.put(None)
        else:
            await _obey(process, message)


async def _write(process: Process, waiting: asyncio.Queue[bytes | None]) -> None:
    """What the client typed, as the process takes it. One that has closed its input, or has ended, no longer does."""
    try:
        while True:
            data = await waiting.get()
            if data is None:
                await process.close_stdin()
            else:
                await process.write(data)
    except Conflict:
        while True:  # so that the listener never waits for room
            await waiting.get()


async def _obey(process: Process, wish: dict[str, Any]) -> None:
    try:
        if isinstance(size := wish.get("resize"), dict):
            await process.resize(PtySize(size.get("rows", ROWS), size.get("cols", COLS)))
        elif isinstance(signal := wish.get("signal"), str | int):
            await process.signal(signal)
        else:
            raise InvalidInput("a wish is resize with rows and cols, signal with a name or number, or stdin_eof")
    except Conflict:
        pass  # it has ended meanwhile, or never had a terminal; its end is told by another message


SIDE = whole(low=1, high=MAX_SIDE)
TERMINAL = record(
    {},
    {
        "rows": SIDE,
        "cols": SIDE,
        "cmd": guest_text("A line for the shell; the user's login shell by default."),
        "cwd": guest_text("The folder to start in."),
        "user": guest_text("Who runs it.", most=256),
    },
)
FRAMES = (
    'Binary messages are bytes in both directions. Text from the client: `{"resize": {"rows", "cols"}}`, `{"signal"}` or '
    '`{"stdin_eof": true}`. Text from the server comes last: `{"exit": code}`, or `{"error", "code"}`. '
)
ENDS = FRAMES + "A client that leaves ends the shell."
STAYS = FRAMES + "A client that leaves only lets go. Takes over from whoever was attached before."
OF_A_TERMINAL = (*OF_A_COMMAND, CommandNotFound, Conflict)

ROUTES = [
    socket("/sandboxes/{id}/exec/pty", open_terminal, "Open a terminal", about=ENDS, query=TERMINAL, errors=OF_A_TERMINAL),
    socket("/sandboxes/{id}/ssh", open_terminal, "The same as exec/pty", about=ENDS, query=TERMINAL, errors=OF_A_TERMINAL),
    socket(
        "/sandboxes/{id}/processes/{process}/attach",
        attach,
        "Attach to a process",
        about=STAYS,
        errors=(*OF_A_GUEST, ProcessNotFound),
    ),
]
