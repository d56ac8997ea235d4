"""One program, written for the published client. It is run with `pandastack` and with `belljar` as `ps`, and must not notice."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any


def run(ps: Any, url: str, key: str, folder: Path) -> list[str]:
    """What it saw, in order. Ids, times and paths of this machine are left out: they differ from run to run."""
    seen: list[str] = []
    retries: list[Any] = []
    client = ps.Client(api_url=url, api_key=key, timeout=60.0, max_create_retry_seconds=30, on_create_retry=retries.append)
    ps.set_default_client(client)
    seen.append(f"client {client.api_url == url} {client.api_base == url} {client.timeout} {client.max_create_retry_seconds}")
    seen.append(f"me {client.me()['workspace']}")

    with ps.Sandbox.create("base", metadata={"run": "scenario"}, ttl_seconds=900, cancel=threading.Event()) as box:
        seen.append(f"made {box.template} {box.status} {box.cpu} {box.memory_mb} {box.metadata} {box.persistent} {box.guest_ip}")
        seen.append(f"found {client.sandboxes.get(box.id).id == box.id} {box.id in [b.id for b in ps.Sandbox.list()]}")
        seen += commands(ps, box)
        seen += files(ps, box, folder)
        seen += cells(ps, box)
        seen += life(ps, client, box)
        seen += forks(ps, client, box)
    seen.append(f"gone {raises(ps.NotFoundError, lambda: client.sandboxes.get(box.id))}")
    seen += others(ps, client, url)
    ps.set_default_client(None)
    return seen


def raises(kind: Any, call: Any) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def commands(ps: Any, box: Any) -> list[str]:
    done = box.exec("echo out; echo err >&2; exit 3", timeout_seconds=60)
    seen = [f"exec {done.stdout!r} {done.stderr!r} {done.exit_code} {type(done).__name__} {done.duration_ms >= 0}"]
    seen.append(f"commands {box.commands.run('echo $HOME', timeout=60).stdout!r}")
    program = box.run_code("import sys; print(6 * 7); sys.exit(5)")
    seen.append(f"python {program.exit_code} {program.stdout!r} {box.run_code('echo $0', 'bash').stdout!r}")
    seen.append(f"language {raises(ValueError, lambda: box.run_code('x', language='cobol'))}")
    seen.append(f"timeout {raises(ps.SandboxTimeout, lambda: box.exec('sleep 60', timeout_seconds=1))}")
    try:
        box.exec("echo no; exit 9", check=True)
    except ps.CommandFailed as failed:
        seen.append(f"check {failed.exit_code} {failed.stdout!r} {isinstance(failed, ps.PandastackError)}")
    out: list[str] = []
    err: list[str] = []
    code = box.exec_stream("echo a; sleep 0.3; echo b; echo c >&2; exit 4", out.append, err.append, timeout_seconds=60)
    seen.append(f"stream {''.join(out)!r} {''.join(err)!r} {code}")
    seen.append(f"stream timeout {raises(ps.SandboxTimeout, lambda: box.exec_stream('sleep 60', timeout_seconds=1))}")
    return seen


def files(ps: Any, box: Any, folder: Path) -> list[str]:
    fs = box.filesystem
    written = fs.write("/tmp/scenario/deep/a.txt", "grüße")
    fs.write("/tmp/scenario/b.bin", bytes(range(256)))
    seen = [f"write {written['bytes']} {fs.read('/tmp/scenario/deep/a.txt').decode()} {len(fs.read('/tmp/scenario/b.bin'))}"]
    info = fs.stat("/tmp/scenario/b.bin")
    seen.append(f"stat {info.name} {info.path} {info.is_dir} {info.size} {info.mode} {info.mtime > 0}")
    seen.append(f"list {[(entry.name, entry.path, entry.is_dir) for entry in fs.listdir('/tmp/scenario')]}")
    seen.append(f"exists {fs.exists('/tmp/scenario')} {fs.exists('/tmp/none')}")
    walked = [(place, [d.name for d in dirs], [f.name for f in found]) for place, dirs, found in fs.walk("/tmp/scenario")]
    seen.append(f"walk {walked}")
    (folder / "up").write_bytes(b"carried")
    fs.upload(folder / "up", "/tmp/scenario/carried")
    fs.download("/tmp/scenario/carried", str(folder / "down"))
    seen.append(f"carried {(folder / 'down').read_bytes()!r}")
    seen.append(f"missing {raises(ps.NotFoundError, lambda: fs.read('/tmp/none'))}")
    seen.append(f"a folder {raises(ps.BadRequestError, lambda: fs.read('/tmp'))}")
    return seen


def cells(ps: Any, box: Any) -> list[str]:
    seen: list[str] = []
    with box.create_code_context("py") as context:
        first = context.run_code("x = 41\nprint('hi')", timeout_seconds=60)
        seen.append(f"cell {first.stdout!r} {first.logs} {first.error} {first.exit_code} {first.text}")
        seen.append(f"context {context.language} {bool(context.id)}")
        value = context.run_code("x + 1")
        seen.append(f"value {value.text} {[result.text for result in value.results]} {type(value).__name__} {value.png}")
        context.run_code("from IPython.display import Image, HTML, JSON, display")
        shown = context.run_code("display(HTML('<b>h</b>'))\nJSON({'a': [1]})")
        seen.append(f"forms {[result.html for result in shown.results]} {[result.json for result in shown.results]}")
        pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        image = context.run_code(f"import base64\ndisplay(Image(data=base64.b64decode('{pixel}'), format='png'))")
        picture = image.png
        seen.append(f"image {base64.b64decode(picture)[:4]!r} {image.results[0].png == picture == image.results[0].chart}")
        failed = context.run_code("1 / 0")
        seen.append(f"error {'ZeroDivisionError' in failed.error} {failed.exit_code} {isinstance(failed.error, str)}")
        seen.append(f"cell timeout {raises(ps.SandboxTimeout, lambda: context.run_code('while True: pass', timeout_seconds=1))}")
        seen.append(f"kept {context.run_code('x').text}")
    context.close()
    seen.append(f"no language {raises(ps.BadRequestError, lambda: box.create_code_context('cobol'))}")
    return seen


def life(ps: Any, client: Any, box: Any) -> list[str]:
    box.pause()
    seen = [f"paused {box.refresh().status} {raises(ps.BadRequestError, lambda: box.exec('true'))}"]
    box.resume()
    seen.append(f"ttl {box.set_ttl(600)['ttl_seconds']} {box.lifecycle()['persistent']}")
    seen.append(f"persistent {box.set_persistent(True)['persistent']} {box.persistent} {box.set_persistent(False)['persistent']}")
    box.hibernate()
    seen.append(f"asleep {box.refresh().status}")
    box.wake()
    box.wake()
    seen.append(f"awake {box.refresh().status} {box.exec('echo still').stdout!r}")
    taken = box.snapshot()
    listed = client.snapshots.list(sandbox_id=box.id)
    seen.append(f"snapshot {isinstance(taken, str)} {[item['id'] == taken for item in listed]}")
    seen.append(f"of {client.snapshots.get(taken)['template']}")
    with client.sandboxes.create("base", from_snapshot=taken) as copy:
        seen.append(f"copy {copy.from_snapshot == taken} {copy.filesystem.exists('/tmp/scenario')}")
    client.snapshots.delete(taken)
    seen.append(f"deleted {raises(ps.NotFoundError, lambda: client.snapshots.get(taken))}")
    return seen


def forks(ps: Any, client: Any, box: Any) -> list[str]:
    child = box.fork(metadata={"kind": "child"})
    seen = [f"fork {child.metadata['fork_parent_id'] == box.id} {child.metadata['kind']}"]
    seen.append(f"inherits {child.filesystem.exists('/tmp/scenario')}")
    child.kill()
    one, two = box.fork_tree(2, metadata={"kind": "tree"})
    tree = one.metadata["fork_tree_id"]
    done = one.promote(cleanup_siblings=True)
    seen.append(f"promote {done['winner'] == one.id} {done['tree_id'] == tree} {done['deleted'] == [two.id]} {done['failures']}")
    one.kill()
    told: list[str] = []
    found = box.explore(
        [
            "exit 1",
            ps.Candidate.shell("good", "printenv WORD > ~/result; echo PASS", env={"WORD": "a b"}),
            ps.Candidate.call("call", lambda sb: sb.id),
        ],
        score_fn=lambda sb, outcome: 2.0 if "PASS" in outcome.stdout_tail else 0.5 if outcome.ok else 0.1,
        capture_files="/home/user",
        on_outcome=lambda outcome: told.append(outcome.label),
    )
    best = found.winner_outcome
    seen.append(f"explore {best.label} {best.score} {best.ok} {best.exit_code} {best.files_changed} {sorted(told)} {found.errors}")
    seen.append(f"outcomes {[(o.label, o.ok, o.score) for o in found.best(3)]} {len(found.reaped)} {'good' in found.table()}")
    seen.append(f"winner {found.winner.exec('cat ~/result').stdout!r}")
    found.winner.kill()
    seen.append(f"no winner {raises(ps.ExploreError, lambda: box.explore(['exit 1'], capture_files=False))}")
    seen.append(f"no candidates {raises(ps.ExploreError, lambda: box.explore([]))}")
    return seen


def others(ps: Any, client: Any, url: str) -> list[str]:
    names = sorted(template.name for template in client.templates.list())
    seen = [f"templates {names} {client.templates.get('base').cpu}"]
    seen.append(f"builds {client.templates.builds()}")
    seen.append(f"theirs {raises(ps.BadRequestError, lambda: client.templates.delete('base'))}")
    token = client.tokens.create("scenario", expires_in_days=1)
    seen.append(f"token {token.token[:4]} {token.name} {token.prefix in [t.prefix for t in client.tokens.list()]}")
    client.tokens.revoke(token.prefix)
    seen.append(f"revoked {raises(ps.AuthError, lambda: ps.Client(api_url=url, api_key=token.token).me())}")
    seen.append(f"unreachable {raises(ps.APIConnectionError, lambda: ps.Client(api_url='http://127.0.0.1:1', api_key='k').me())}")
    seen.append(f"not found {raises(ps.NotFoundError, lambda: client.templates.get('none'))}")
    handle = ps.Sandbox(id="sb-1", template="base", cpu=1, memory_mb=1, status="running", _client=client)
    seen.append(f"a handle {handle.status} {handle.preview_url(80, scheme='https')[:13]}")
    return seen
