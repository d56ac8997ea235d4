"""Sandboxes as a whole: create, list, fork, put to sleep, kill."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from belljar.cli.opening import add_egress, add_env, add_json, add_metadata, open_fleet, parse_egress, parse_pairs
from belljar.cli.render import flatten, render_json, render_pairs, render_since, render_table, render_until
from belljar.errors import InvalidInput

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.fleet.sandboxes import Fleet
    from belljar.store.db import SandboxRecord

MOVES = {
    "pause": "stop a sandbox's clock; its memory stays",
    "resume": "let a paused sandbox go on",
    "hibernate": "save a sandbox to disk and free its memory",
    "wake": "bring a hibernated sandbox back",
}


def register(commands: Commands) -> None:
    create = commands.add_parser("create", help="create a sandbox and print its id")
    origin = create.add_mutually_exclusive_group()
    origin.add_argument("--template", metavar="NAME", help="default: base")
    origin.add_argument("--snapshot", metavar="ID", help="start from this snapshot instead of a template")
    create.add_argument("--ttl", type=float, metavar="S", help="seconds after which it may be removed")
    create.add_argument("--vcpus", type=int, metavar="N")
    create.add_argument("--memory", type=int, metavar="MIB")
    create.add_argument("--disk", type=int, metavar="MIB")
    add_env(create)
    add_metadata(create)
    add_egress(create)
    add_json(create)
    create.set_defaults(handler=create_sandbox)

    ps = commands.add_parser("ps", help="list sandboxes, or the processes of one")
    ps.add_argument("sandbox", metavar="ID", nargs="?")
    add_metadata(ps)
    add_json(ps)
    ps.set_defaults(handler=list_running)

    fork = commands.add_parser("fork", help="make copies of a running sandbox, and print their ids")
    fork.add_argument("sandbox", metavar="ID")
    fork.add_argument("-n", type=int, default=1, metavar="N", help="how many (default: 1)")
    add_metadata(fork)
    add_json(fork)
    fork.set_defaults(handler=fork_sandbox)

    for move, text in MOVES.items():
        parser = commands.add_parser(move, help=text)
        parser.add_argument("sandboxes", metavar="ID", nargs="+")
        parser.set_defaults(handler=move_sandboxes, move=move)

    kill = commands.add_parser("kill", help="end sandboxes and remove what they held")
    kill.add_argument("sandboxes", metavar="ID", nargs="*")
    kill.add_argument("--all", action="store_true", help="every sandbox of this host")
    kill.set_defaults(handler=kill_sandboxes)

    stats = commands.add_parser("stats", help="what a sandbox uses, as the guest sees it and as the host pays for it")
    stats.add_argument("sandbox", metavar="ID")
    add_json(stats)
    stats.set_defaults(handler=show_stats)

    gc = commands.add_parser("gc", help="remove expired sandboxes and what belongs to nobody")
    add_json(gc)
    gc.set_defaults(handler=collect_garbage)


async def create_sandbox(args: argparse.Namespace) -> int:
    env, metadata = parse_pairs(args.env, "--env"), parse_pairs(args.metadata, "--metadata")
    async with open_fleet() as fleet:
        sandbox = await fleet.create(
            args.template or "base",
            snapshot=args.snapshot,
            env=env,
            metadata=metadata,
            ttl_s=args.ttl,
            vcpus=args.vcpus,
            memory_mib=args.memory,
            disk_mib=args.disk,
            egress=parse_egress(args),
        )
        print(render_json(_shown(sandbox.record)) if args.json else sandbox.id)
    return 0


async def list_running(args: argparse.Namespace) -> int:
    metadata = parse_pairs(args.metadata, "--metadata")
    async with open_fleet() as fleet:
        print(await (_processes(fleet, args) if args.sandbox else _sandboxes(fleet, metadata, args.json)))
    return 0


def _shown(record: SandboxRecord) -> dict[str, Any]:
    """A record as it may be shown: environments hold secrets, so only their names are, and what is secret by name is not."""
    shown = {**asdict(record), "env": sorted(record.env)}
    return {name: value for name, value in shown.items() if name not in ("egress_secrets", "egress_authority")}


async def _sandboxes(fleet: Fleet, metadata: dict[str, str], as_json: bool) -> str:
    records = await fleet.list(metadata=metadata or None)
    if as_json:
        return render_json([_shown(record) for record in records])
    rows = [
        (r.id, r.template, r.state, render_since(r.created_at), render_until(r.expires_at), r.parent, render_pairs(r.metadata))
        for r in records
    ]
    return render_table(("ID", "TEMPLATE", "STATE", "AGE", "EXPIRES IN", "PARENT", "METADATA"), rows)


async def _processes(fleet: Fleet, args: argparse.Namespace) -> str:
    found = await (await fleet.get(args.sandbox)).processes.list()
    if args.json:
        return render_json(found)
    rows = []
    for p in found:
        state = "running" if p.running else f"signal {p.signal}" if p.signal is not None else f"exit {p.exit_code}"
        rows.append((p.id, p.pid, state, p.user, p.stdout_bytes, p.stderr_bytes, " ".join(p.argv)[:80]))
    return render_table(("ID", "PID", "STATE", "USER", "STDOUT", "STDERR", "COMMAND"), rows)


async def fork_sandbox(args: argparse.Namespace) -> int:
    metadata = parse_pairs(args.metadata, "--metadata")
    async with open_fleet() as fleet:
        children = await (await fleet.get(args.sandbox)).fork(args.n, metadata=metadata or None)
        print(render_json([_shown(child.record) for child in children]) if args.json else "\n".join(child.id for child in children))
    return 0


async def move_sandboxes(args: argparse.Namespace) -> int:
    async with open_fleet() as fleet:
        for name in args.sandboxes:
            sandbox = await fleet.get(name)
            moves = {"pause": sandbox.pause, "resume": sandbox.resume, "hibernate": sandbox.hibernate, "wake": sandbox.wake}
            await moves[args.move]()
    return 0


async def kill_sandboxes(args: argparse.Namespace) -> int:
    if bool(args.sandboxes) == args.all:
        raise InvalidInput("name the sandboxes to kill, or give --all (not both)")
    async with open_fleet() as fleet:
        for name in [r.id for r in await fleet.list()] if args.all else args.sandboxes:
            await fleet.kill(name)
    return 0


async def show_stats(args: argparse.Namespace) -> int:
    async with open_fleet() as fleet:
        stats = await (await fleet.get(args.sandbox)).stats()
    if args.json:
        print(render_json(stats))
    else:
        print(render_table(("WHAT", "VALUE"), flatten(stats)))
    return 0


async def collect_garbage(args: argparse.Namespace) -> int:
    import asyncio

    from belljar.settings import load_settings
    from belljar.templates.pruning import prune

    async with open_fleet() as fleet:
        later = vars(await fleet.sweep())
        report = {why: [*ids, *later[why]] for why, ids in vars(fleet.swept).items()}
    report["superseded"] = [f"{path.parent.name}/{path.name[:12]}" for path in await asyncio.to_thread(prune, load_settings())]
    print(render_json(report) if args.json else render_table(("WHY", "REMOVED"), flatten(report)))
    return 0
