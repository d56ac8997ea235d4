"""Many commands over one WebSocket, each with an id of the client's own.

    client  {"id", "cmd", "timeout_seconds"?}   {"id", "cancel": true}
    server  {"id", "stream", "data"}*   then {"id", "exit"} or {"id", "error", "code"}
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from belljar.errors import BelljarError, Conflict, InvalidInput
from belljar.server.auth import service_of, workspace_of
from belljar.server.declaring import socket
from belljar.server.operation import OF_A_GUEST
from belljar.server.problems import problem_of
from belljar.server.shapes import check, check_record, either, flag, guest_text, number, record, text, whole
from belljar.server.sockets import receive, send
from belljar.service.running import Chunk, stream_command

log = logging.getLogger(__name__)

AT_ONCE = 32
DEFAULT_TIMEOUT_S = 900.0

ID = either(text(most=128), whole())
RUN = record({"id": ID, "cmd": guest_text()}, {"timeout_seconds": number()})
CANCEL = record({"id": ID, "cancel": flag()})
FRAMES = (
    'Text messages. From the client: `{"id", "cmd", "timeout_seconds"?}` runs a line, `{"id", "cancel": true}` ends it. '
    'From the server: `{"id", "stream", "data"}` as it comes, then `{"id", "exit"}` or `{"id", "error", "code"}`. '
    f"At most {AT_ONCE} commands at a time. A client that leaves ends all of them."
)


Commands = dict[str | int, asyncio.Task[None]]


async def talk(websocket: WebSocket) -> None:
    async with workspace_of(websocket).guest(websocket.path_params["id"], "stream"):
        await websocket.accept()
        commands: Commands = {}
        try:
            while True:
                name = None
                try:
                    message = await receive(websocket)
                    name = _name(message)
                    await _take(websocket, message, commands)
                except BelljarError as problem:
                    await _explain(websocket, name, problem)
        finally:
            running = list(commands.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _name(message: bytes | dict[str, Any]) -> str | int | None:
    """The id, if it is one: what is none is not repeated to its sender."""
    try:
        name: str | int | None = check(message.get("id"), ID, "id") if isinstance(message, dict) else None
        return name
    except InvalidInput:
        return None


async def _take(websocket: WebSocket, message: bytes | dict[str, Any], commands: Commands) -> None:
    if not isinstance(message, dict):
        raise InvalidInput("commands are text messages")
    if "cancel" in message:
        wish = check_record(message, CANCEL)
        if wish["cancel"] and (task := commands.get(wish["id"])):
            await _cancel(websocket, wish["id"], task)
        return
    wish = check_record(message, RUN)
    name = wish["id"]
    if name in commands:
        raise Conflict(f"a command with the id {name!r} is running already")
    if len(commands) >= AT_ONCE:
        raise Conflict(f"{AT_ONCE} commands are running over this connection already; wait for one to end")
    task = commands[name] = asyncio.create_task(_run(websocket, wish))
    task.add_done_callback(lambda task: _forget(commands, name, task))


def _forget(commands: Commands, name: str | int, task: asyncio.Task[None]) -> None:
    commands.pop(name, None)
    if not task.cancelled() and (error := task.exception()) and not isinstance(error, WebSocketDisconnect):
        log.error("a command over a WebSocket failed", exc_info=error)


async def _run(websocket: WebSocket, wish: dict[str, Any]) -> None:
    name, timeout_s = wish["id"], wish.get("timeout_seconds", DEFAULT_TIMEOUT_S)
    source = stream_command(workspace_of(websocket), websocket.path_params["id"], wish["cmd"], timeout_s)
    async with aclosing(source):
        try:
            async for item in source:
                told = {"stream": item.stream, "data": item.text} if isinstance(item, Chunk) else {"exit": item.exit_code}
                await send(websocket, {"id": name, **told})
        except BelljarError as problem:
            await _explain(websocket, name, problem)


async def _cancel(websocket: WebSocket, name: str | int, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():  # else it ended by itself at the same moment, and said so
        await send(websocket, {"id": name, "error": "cancelled", "code": "cancelled"})


async def _explain(websocket: WebSocket, name: object, error: BelljarError) -> None:
    problem = problem_of(error, "GET", websocket.scope["path"], str(service_of(websocket).settings.home))
    await send(websocket, {"id": name, "error": problem.message, "code": problem.code})


ROUTES = [socket("/sandboxes/{id}/exec/ws", talk, "Run commands over one connection", about=FRAMES, errors=OF_A_GUEST)]
