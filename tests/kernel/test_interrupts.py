"""SIGINT stops the user's code wherever it is, and never the kernel."""

from __future__ import annotations

import pytest

from tests.kernel.driver import Context

HERE = "print('here', flush=True)\n"


@pytest.mark.parametrize(
    "code",
    [
        f"import time\n{HERE}time.sleep(600)",
        f"{HERE}while True: pass",
        f"import asyncio\n{HERE}await asyncio.sleep(600)",
        f"import asyncio\nawait asyncio.sleep(0)\n{HERE}while True: pass",
        f"import asyncio\n{HERE}asyncio.run(asyncio.sleep(600))",
        f"{HERE}!sleep 600\nprint('not reached')",
        f"import threading\n{HERE}threading.Event().wait()",
        f"import signal\n_ = signal.signal(signal.SIGUSR2, signal.SIG_IGN)\n{HERE}signal.pause()",
    ],
)
def test_an_interrupt_stops_the_cell_and_keeps_the_state(context: Context, code: str) -> None:
    context.run("x = 1")
    context.start(code)
    context.wait_printed(b"here")
    context.interrupt()
    ran = context.finish()
    assert ran.error is not None and ran.error["name"] == "KeyboardInterrupt"
    assert "not reached" not in ran.stdout
    assert not any("belljar" in line for line in ran.error["traceback"])
    assert context.run("x").text == "1"


def test_a_cell_that_catches_the_first_interrupt_is_stopped_by_the_second(context: Context) -> None:
    catching = "try:\n    print('here')\n    time.sleep(600)\nexcept KeyboardInterrupt: print('caught')\n"
    context.start(f"import time\n{catching}time.sleep(600)")
    context.wait_printed(b"here")
    context.interrupt()
    context.wait_printed(b"caught")
    context.interrupt()
    error = context.finish().error
    assert error is not None and error["name"] == "KeyboardInterrupt"


def test_an_interrupted_await_does_not_go_on_behind_the_next_cell(context: Context) -> None:
    context.start(f"import asyncio\n{HERE}await asyncio.sleep(0.2)\nprint('went on')")
    context.wait_printed(b"here")
    context.interrupt()
    context.finish()
    assert context.run("await asyncio.sleep(0.4)").stdout == ""


def test_a_user_handler_is_replaced_before_the_next_cell(context: Context) -> None:
    context.run("import signal; _ = signal.signal(signal.SIGINT, signal.SIG_IGN)")
    context.start(f"import time\n{HERE}time.sleep(600)")
    context.wait_printed(b"here")
    context.interrupt()
    assert context.finish().error is not None


def test_interrupts_at_any_moment_leave_the_protocol_whole(context: Context) -> None:
    for _ in range(200):
        context.start("for i in range(20): display(i)\n1/0")
        context.interrupt()
        error = context.finish().error
        assert error is None or error["name"] in ("KeyboardInterrupt", "ZeroDivisionError")
        context.interrupt()  # idle, or almost
    assert context.run("1 + 1").text == "2"
