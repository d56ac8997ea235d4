"""Clients that use a server while it and its machines are being killed, and remember everything that was wrong."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import requests

from belljar.errors import BY_CODE
from tests.server.conftest import Server

ASK_S = 120
# A server that was killed is back long before this many tries.
RECONNECTS = 600
# What may be said of a sandbox whose machine was killed; the last of one that was just being woken.
OF_THE_DEAD = {"sandbox_gone", "start_failed"}
# What may be said of any start, a wake included: there is no room for it now.
NO_ROOM = {"host_busy", "host_memory_short", "host_disk_short"}
TELLTALE = ("errno", "traceback", "/sandboxes/sb-", "/tmp/tests-", "no such file")


class Lost(Exception):
    """The connection broke, so nobody knows whether the call was done."""


class Refused(Exception):
    """An answer that is a documented error."""


class Storm:
    """One server, many clients, and what they have found."""

    def __init__(self, home: Path, server: Server, token: str) -> None:
        self.home, self.server, self.token = home, server, token
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.killed: set[str] = set()
        self._lock = threading.Lock()
        self.rounds = 0
        self.over = threading.Event()

    # -- faults -------------------------------------------------------------------------------------------------------------

    def kill_server(self) -> None:
        self.server.stop(signal.SIGKILL)
        self.server.start()
        self.count("server killed")

    def kill_machine(self) -> None:
        """A machine at random, whatever it is doing."""
        folders = [folder for folder in (self.home / "sandboxes").glob("sb-*") if (folder / "machine.json").exists()]
        random.shuffle(folders)
        for folder in folders:
            try:
                pid = json.loads((folder / "machine.json").read_text())["pid"]
                if str(folder) in os.readlink(f"/proc/{pid}/fd/1"):
                    self.killed.add(folder.name)
                    os.kill(pid, signal.SIGKILL)
                    self.count("machine killed")
                    return
            except (OSError, ValueError):
                continue  # it ended by itself just now

    # -- notes --------------------------------------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def blame(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

    def done(self) -> None:
        with self._lock:
            self.rounds += 1


class User:
    """One client. Every answer is compared with what this client alone can know."""

    def __init__(self, storm: Storm, number: int) -> None:
        self._storm, self._number = storm, number
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {storm.token}"

    def round(self) -> None:
        known: list[str] = []
        try:
            self._round(known)
            self._storm.count("round whole")
        except Lost:
            self._storm.count("round lost to a broken connection")
        except Refused as problem:
            self._storm.count(f"round ended by {problem}")
        finally:
            for sandbox_id in known:
                self._end(sandbox_id)
            self._storm.done()

    def _round(self, known: list[str]) -> None:
        word = secrets.token_hex(16)
        wish = {"template": "base", "metadata": {"user": str(self._number)}, "ttl_seconds": 900}
        parent = self._start("/v1/sandboxes", wish, known)
        self._write(parent, word)
        self._expect(parent, f"{word} {parent}")
        context = str(self._call("POST", f"/v1/sandboxes/{parent}/repl/sessions", parent, json={"language": "python"}).json()["id"])
        self._cell(parent, context, f"word = {word!r}", "")
        child = self._start(f"/v1/sandboxes/{parent}/fork", {"metadata": {"child": "yes"}}, known)
        self._expect(child, f"{word} {child}")
        self._cell(child, context, "print(word); del word", f"{word}\n")
        self._write(child, word[::-1])
        self._expect(parent, f"{word} {parent}")
        self._read(child, word[::-1])
        self._read(parent, word)
        self._again("POST", f"/v1/sandboxes/{parent}/hibernate", parent)
        self._read(parent, word)  # which wakes it
        self._cell(parent, context, "print(word)", f"{word}\n")
        self._restore(child, word[::-1], known)
        found = self._again("GET", f"/v1/sandboxes/{child}", child).json()
        if found["metadata"].get("fork_parent_id") != parent or found["metadata"].get("user") != str(self._number):
            self._storm.blame(f"{child} says of itself {found}, and is a child of {parent}")

    # -- steps --------------------------------------------------------------------------------------------------------------

    def _start(self, path: str, body: object, known: list[str]) -> str:
        answer = self._call("POST", path, path.split("/")[3] if path.count("/") > 2 else None, json=body)
        made = answer.json()
        sandbox_id = str(made.get("sandbox", made)["id"])
        known.append(sandbox_id)
        return sandbox_id

    def _write(self, sandbox_id: str, content: str) -> None:
        self._again("PUT", f"/v1/sandboxes/{sandbox_id}/fs", sandbox_id, params={"path": "/tmp/word"}, data=content.encode())

    def _read(self, sandbox_id: str, wanted: str) -> None:
        found = self._again("GET", f"/v1/sandboxes/{sandbox_id}/fs", sandbox_id, params={"path": "/tmp/word"}).text
        if found != wanted:
            self._storm.blame(f"{sandbox_id} holds {found!r} where {wanted!r} was written")

    def _expect(self, sandbox_id: str, wanted: str) -> None:
        body = {"cmd": "echo $(cat /tmp/word) $(hostname)", "timeout_seconds": 60}
        found = self._again("POST", f"/v1/sandboxes/{sandbox_id}/exec", sandbox_id, json=body).json()
        if found["stdout"] != f"{wanted}\n" or found["exit_code"]:
            self._storm.blame(f"{sandbox_id} said {found}, and {wanted!r} was due")

    def _restore(self, sandbox_id: str, content: str, known: list[str]) -> None:
        """A sandbox from a snapshot of another holds what that one held."""
        taken = str(self._call("POST", f"/v1/sandboxes/{sandbox_id}/snapshots", sandbox_id).json()["id"])
        try:
            self._read(self._start("/v1/sandboxes", {"from_snapshot": taken, "ttl_seconds": 900}, known), content)
        finally:
            self._again("DELETE", f"/v1/snapshots/{taken}", None, gone=True)

    def _cell(self, sandbox_id: str, context: str, code: str, wanted: str) -> None:
        body = {"code": code, "timeout_ms": 60_000}
        found = self._call("POST", f"/v1/sandboxes/{sandbox_id}/repl/sessions/{context}/run", sandbox_id, json=body).json()
        if (found["stdout"], found["error"]) != (wanted, None):
            self._storm.blame(f"{sandbox_id} ran {code!r} and said {found}, and {wanted!r} was due")

    def _end(self, sandbox_id: str) -> None:
        try:
            self._again("DELETE", f"/v1/sandboxes/{sandbox_id}", None)
            answer = self._again("GET", f"/v1/sandboxes/{sandbox_id}", None, gone=True)
            if answer.status_code != 404:
                self._storm.blame(f"{sandbox_id} was deleted and answers {answer.status_code} {answer.text}")
        except (Lost, Refused) as problem:
            self._storm.blame(f"{sandbox_id} could not be deleted: {problem!r}")

    # -- calls --------------------------------------------------------------------------------------------------------------

    def _again(self, method: str, path: str, about: str | None, *, gone: bool = False, **options: object) -> requests.Response:
        """A call that may be made twice: it is, until the server is back."""
        for _ in range(RECONNECTS):
            try:
                return self._call(method, path, about, gone=gone, **options)
            except Lost:
                self._storm.count("call made again")
                time.sleep(0.2)
        raise Lost

    def _call(self, method: str, path: str, about: str | None, *, gone: bool = False, **options: object) -> requests.Response:
        self._wait_for_server()
        try:
            answer = self._session.request(method, self._storm.server.url + path, timeout=ASK_S, **options)  # type: ignore[arg-type]
        except requests.Timeout as problem:
            self._storm.blame(f"{method} {path} was not answered in {ASK_S} s")
            raise Lost from problem
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as problem:
            raise Lost from problem
        if answer.status_code < 400 or (gone and answer.status_code == 404):
            return answer
        raise Refused(self._judged(method, path, about, answer))

    def _wait_for_server(self) -> None:
        for _ in range(RECONNECTS):
            try:
                self._session.get(f"{self._storm.server.url}/healthz", timeout=ASK_S)
                return
            except requests.RequestException:
                time.sleep(0.2)

    def _judged(self, method: str, path: str, about: str | None, answer: requests.Response) -> str:
        """The code of a refusal, after a look at whether it is a proper one, and has a cause."""
        said = f"{method} {path} was answered {answer.status_code} {answer.text[:600]}"
        try:
            problem = answer.json()
            code, message = str(problem["code"]), str(problem["error"])
        except (ValueError, KeyError):
            self._storm.blame(f"{said}, which is no error of ours")
            return "unknown"
        known = BY_CODE.get(code)
        if known is None or known.status != answer.status_code or code == "internal":
            self._storm.blame(f"{said}, which is not documented")
        if any(words in message.lower() for words in TELLTALE):
            self._storm.blame(f"{said}, which tells of the server's inside")
        caused = code in OF_THE_DEAD and about in self._storm.killed
        fresh = code == "start_failed" and method == "POST" and path.endswith(("/sandboxes", "/fork"))
        if not caused and not fresh and code not in NO_ROOM:
            self._storm.blame(f"{said}, and nothing was done to it")
        return code
