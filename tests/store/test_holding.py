"""One holder at a time, and a lock that never outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.errors import Conflict
from belljar.store.holding import Holder, find_holder, hold

HOLD = """
import sys, time
from pathlib import Path
from belljar.store.holding import hold
with hold(Path(sys.argv[1]), "something runs here") as held:
    held.tell("http://127.0.0.1:1234")
    print("held", flush=True)
    time.sleep(600)
"""


def test_who_comes_second_learns_who_is_first(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert find_holder(lock) is None
    with hold(lock, "a server serves this home") as held:
        assert find_holder(lock) == Holder(os.getpid())
        held.tell("http://127.0.0.1:8080")
        assert find_holder(lock) == Holder(os.getpid(), "http://127.0.0.1:8080")
        with pytest.raises(Conflict, match=f"process {os.getpid()} at http://127.0.0.1:8080"), hold(lock, "it runs"):
            pass
        assert find_holder(lock) == Holder(os.getpid(), "http://127.0.0.1:8080"), "looking let go of it"
    assert find_holder(lock) is None
    with hold(lock, "again"):
        pass


def test_a_holder_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert find_holder(lock) == Holder(other.pid, "http://127.0.0.1:1234")
        other.send_signal(signal.SIGKILL)
        other.wait(30)
    assert find_holder(lock) is None
    with hold(lock, "mine now"):
        assert find_holder(lock) == Holder(os.getpid())
