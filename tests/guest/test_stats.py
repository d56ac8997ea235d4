"""What the guest says about itself."""

from __future__ import annotations

import os

from tests.guest.conftest import Guest


async def test_stats_are_plausible(guest: Guest) -> None:
    stats = await guest.ask("stats")
    assert stats["cpu"]["count"] == os.cpu_count()
    assert 0 < stats["memory"]["used"] <= stats["memory"]["total"]
    assert 0 < stats["disk"]["used"] <= stats["disk"]["total"]
    assert stats["processes"] > 1
    assert stats["uptime_s"] > 0
    assert stats["cpu"]["user_s"] > 0


async def test_settle_ends_even_on_a_busy_machine(guest: Guest) -> None:
    busy = await guest.start("while :; do :; done")
    assert await guest.ask("settle") == {}
    await guest.ask("process.kill", id=busy)
