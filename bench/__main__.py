"""`make bench`: run the benchmarks, print the summary, keep the samples."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from belljar.errors import BelljarError
from bench.bursting import bursting
from bench.contexts import contexts
from bench.creating import creating
from bench.forking import forking
from bench.idling import idling
from bench.lab import Lab, open_lab, say
from bench.networking import networking
from bench.pausing import pausing
from bench.report import write_results
from bench.results import Result
from bench.serving import serving
from bench.transferring import transferring

RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[Lab], Awaitable[Result]]] = {
    "create": creating,
    "pause": pausing,
    "fork": forking,
    "idle": idling,
    "burst": bursting,
    "transfer": transferring,
    "network": networking,
    "contexts": contexts,
    "serving": serving,
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="measure Belljar against its targets on this machine")
    parser.add_argument("--quick", action="store_true", help="few samples: minutes instead of a quarter of an hour")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=sorted(BENCHMARKS), help="only this one; may be repeated"
    )
    return parser.parse_args(argv)


async def measure(names: list[str], *, quick: bool) -> bool:
    """Run the named benchmarks and write what they found. False if one failed or missed a target."""
    task = asyncio.current_task()
    assert task is not None
    # Cancelling runs every clean-up on the way out, as Ctrl-C does.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    results: dict[str, Result] = {}
    problems: dict[str, str] = {}
    text = ""
    async with open_lab(quick=quick) as lab:
        host = describe_host(lab)
        for name in names:
            say(f"{name} …")
            began = time.perf_counter()
            try:
                results[name] = await BENCHMARKS[name](lab)
            except (BelljarError, AssertionError, TimeoutError, OSError) as problem:
                problems[name] = f"{type(problem).__name__}: {problem}"
                say(f"  failed: {problems[name]}")
            say(f"  {time.perf_counter() - began:.0f} s")
            host["load at the end"] = _load()
            text = write_results(RESULTS, stamp, host, results, problems)  # after each: an interrupted run keeps what it has
    print(text)
    missed = [verdict for result in results.values() for verdict in result.verdicts if verdict.met is False]
    return not problems and not missed


def describe_host(lab: Lab) -> dict[str, str]:
    manifest = lab.manifest
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "samples": "few (--quick)" if lab.quick else "full",
        "host": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "QEMU": f"{lab.facts.qemu_version}, {lab.facts.accelerator}, jail {'on' if lab.facts.jail else 'off'}",
        "template": f"{manifest.template} {manifest.template_digest[:12]}, {manifest.vcpus} vCPU, {manifest.memory_mib} MiB",
        "load at the start": _load(),
    }


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    names = [name for name in BENCHMARKS if not arguments.only or name in arguments.only]
    try:
        return 0 if asyncio.run(measure(names, quick=arguments.quick)) else 1
    except BelljarError as problem:
        say(f"bench: {problem.message}")
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("bench: interrupted; everything that was started is ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
