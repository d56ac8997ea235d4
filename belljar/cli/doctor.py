"""`belljar doctor`: what this machine can do, and what Belljar will use of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from belljar.cli.opening import add_json
from belljar.cli.render import make_progress, render_json, render_table

if TYPE_CHECKING:
    from belljar.cli.opening import Commands


def register(commands: Commands) -> None:
    doctor = commands.add_parser("doctor", help="say what this machine can do and what it will use")
    add_json(doctor)
    doctor.set_defaults(handler=examine)


async def examine(args: argparse.Namespace) -> int:
    import asyncio

    from belljar.fleet.doctor import doctor_report
    from belljar.settings import load_settings

    report = await asyncio.to_thread(doctor_report, load_settings(), make_progress())
    if args.json:
        print(render_json(report.to_json()))
    else:
        print(render_table(("CHECK", "", "FOUND"), [(row.check, row.verdict, row.value) for row in report.rows]))
        _print_part("What would help:", [f"{row.check}: {row.advice}" for row in report.rows if row.advice])
        _print_part("Isolation:", report.isolation)
    return report.exit_code


def _print_part(title: str, lines: list[str]) -> None:
    if lines:
        print("", title, *(f"  {line}" for line in lines), sep="\n")
