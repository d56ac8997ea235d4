"""What must change after a restore: clock, randomness, identity, defaults. The first request of a session, so it must be short."""

from __future__ import annotations

import binascii
import re
from typing import Any, Final

from belljar.guest.context import Context
from belljar.guest.disk import grow_disk
from belljar.guest.failure import invalid
from belljar.guest.params import Params

_MIN_ENTROPY: Final = 64
_HOSTNAME: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,62})")
_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")


def thaw(context: Context, params: Params) -> dict[str, Any]:
    machine = context.machine
    time_ns = params.find_integer("time_ns", 0, 1 << 62)
    entropy = _entropy(params)
    hostname, machine_id = params.find_text("hostname"), params.find_text("machine_id")
    if hostname is not None and not _HOSTNAME.fullmatch(hostname):
        raise invalid(f"`hostname` cannot be {hostname!r}")
    if machine_id is not None and not _MACHINE_ID.fullmatch(machine_id):
        raise invalid("`machine_id` must be 32 hexadecimal digits")
    env, user, cwd = params.environment("env"), params.find_text("user"), params.find_text("cwd")
    grow = params.flag("grow_disk")
    if user is not None:
        context.accounts.get(user)
    # Randomness before anything else could draw from it, then the clock, so that what is written carries the right time.
    if entropy is not None:
        machine.add_entropy(entropy)
    if time_ns is not None:
        machine.set_clock(time_ns)
    if hostname is not None:
        machine.set_hostname(hostname)
    if machine_id is not None:
        machine.set_machine_id(machine_id)
    news = {name: value for name, value in (env or {}).items() if context.env.get(name) != value}
    moved = cwd if cwd != context.cwd else None
    context.env.update(news)
    context.user = user or context.user
    context.cwd = cwd or context.cwd
    for tell in context.after_thaw:
        tell(news, moved)
    if grow:
        grow_disk()
    return {}


def _entropy(params: Params) -> bytes | None:
    text = params.find_text("entropy")
    if text is None:
        return None
    try:
        entropy = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise invalid("`entropy` must be base64") from None
    if not _MIN_ENTROPY <= len(entropy) <= 4096:
        raise invalid(f"`entropy` must be {_MIN_ENTROPY} to 4096 bytes")
    return entropy
