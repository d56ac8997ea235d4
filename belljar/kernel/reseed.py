"""New randomness after a fork, of the process or of the whole machine: two copies of one state must not draw the same numbers.

Who has seeded a generator wants the same numbers everywhere, and keeps them. os.urandom, and with it uuid4 and secrets, is the
kernel's business.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType, ModuleType
from typing import Any


class Reseeder:
    """Knows which of the module-wide generators the user has seeded, and gives the others a new state."""

    def __init__(self) -> None:
        self._seeded: set[str] = set()

    def watch(self, module: ModuleType, *names: str) -> None:
        """Notice calls of `names`, the functions of `module` with which a user chooses its state."""
        for name in names:
            setattr(module, name, self._noticing(module.__name__, getattr(module, name)))

    def handle(self, _signum: int, _frame: FrameType | None) -> None:
        """The machine is a copy. OpenSSL, which draws from a state of its own, notices only that a process is one."""
        self.reseed()
        if (ssl := sys.modules.get("ssl")) is not None:
            ssl.RAND_add(os.urandom(32), 32.0)

    def reseed(self) -> None:
        """Safe between any two steps of the user's code."""
        if "random" not in self._seeded:
            random._inst.seed()
        if "numpy.random" not in self._seeded:
            _reseed_numpy()
        if "uuid" in sys.modules:
            sys.modules["uuid"].__dict__["_node"] = None  # uuid1's: a random number where there is no network card

    def _noticing(self, module: str, seed: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(seed)
        def noticed(*args: Any, **kwargs: Any) -> Any:
            self._seeded.add(module)
            return seed(*args, **kwargs)

        return noticed


def _reseed_numpy() -> None:
    state = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if state is None:
        return
    lock = state._bit_generator.lock
    # Held when the signal arrives in the middle of a shuffle of Python objects, and not ours to wait for: we are that shuffle.
    if lock.acquire(blocking=False):
        lock.release()
        state.seed()
