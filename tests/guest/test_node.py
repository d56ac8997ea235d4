"""JavaScript and TypeScript contexts: the host's Node.js behind the real agent."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from belljar.errors import SandboxError
from belljar.guest.context import PATH
from tests.guest.cells import begin, collect, create, run
from tests.guest.conftest import Guest
from tests.guest.test_processes import wait_for

NODE = shutil.which("node", path=PATH)


@pytest.fixture
async def node(guest: Guest) -> str:
    if NODE is None:
        pytest.skip("there is no Node.js on this host")
    return await create(guest, "js")


async def test_javascript_keeps_its_names_and_may_declare_them_again(guest: Guest, node: str) -> None:
    assert (await run(guest, node, "let x = 1; const y = 2; class A { f() { return 1 } }; function g() { return x }")).error is None
    again = await run(guest, node, "let x = 5; const y = 6; class A { f() { return 2 } }; [x, y, new A().f(), g()]")
    assert again.text.startswith("[ 5, 6, 2, 5 ]")


async def test_javascript_shows_the_last_expression(guest: Guest, node: str) -> None:
    cell = await run(guest, node, "console.log('out'); console.error('err'); await Promise.resolve({a: [1, null, 'é']})")
    ((header, blob),) = cell.outputs
    assert [part["mime"] for part in header["parts"]] == ["text/plain", "application/json"]
    assert json.loads(blob[header["parts"][0]["size"] :]) == {"a": [1, None, "é"]}
    assert (cell.stdout, cell.stderr) == (b"out\n", b"err\n")
    for code in ("undefined", "let z = 1", "function h() {}", "for (const i of [1]) {}"):
        assert not (await run(guest, node, code)).outputs, code
    assert (await run(guest, node, "const loop = {}; loop.self = loop; loop")).text == "<ref *1> { self: [Circular *1] }"
    cell = await run(guest, node, "display({'text/html': '<b>', 'image/png': Buffer.from([1, 2])}, {raw: true})")
    assert cell.outputs[0][1] == b"<b>\1\2" and [part["kind"] for part in cell.outputs[0][0]["parts"]] == ["text", "binary"]


async def test_javascript_modules_are_those_of_the_working_directory(guest: Guest, node: str) -> None:
    (guest.home / "mine.mjs").write_text("export const value = 41; export default 1")
    (guest.home / "node_modules/pack").mkdir(parents=True)
    (guest.home / "node_modules/pack/index.js").write_text("exports.packed = 7")
    cell = await run(
        guest,
        node,
        """import one, {value as v} from "./mine.mjs";
import * as path from "node:path"; import fs from 'fs'
const text = `import no from "${'nothing'}" import("x")`; // import "comment"
const {packed} = await import("pack");
export const all = [one + v, path.sep, typeof fs.readFileSync, require("pack").packed + packed, text.length];
all""",
    )
    assert cell.error is None and cell.text.startswith("[ 42, '/', 'function', 14, 36 ]"), cell


async def test_javascript_errors_have_name_message_and_the_cells_own_lines(guest: Guest, node: str) -> None:
    cell = await run(guest, node, "function f() {\n  null.x\n}\nf()")
    assert cell.error is not None and (cell.kind, cell.error["name"]) == ("exception", "TypeError")
    assert [line.strip() for line in cell.error["traceback"][1:]] == ["at f (cell-1:2:8)", "at cell-1:4:1"]
    cell = await run(guest, node, "let a = ;")
    assert cell.error is not None and cell.error["name"] == "SyntaxError" and cell.error["traceback"][-1].endswith(":1:9")
    cell = await run(guest, node, "throw {odd: 1}")
    assert cell.error is not None and cell.error["value"] == "{ odd: 1 }"
    late = "setTimeout(() => { throw new Error('late') }, 1); await new Promise((r) => setTimeout(r, 50)); 'alive'"
    cell = await run(guest, node, late)
    assert cell.text == "'alive'" and b"late" in cell.stderr
    cell = await run(guest, node, "process.exit(4)")
    assert cell.error is not None and (cell.kind, cell.error["value"], cell.error["state_lost"]) == ("exit", "4", False)
    assert (await run(guest, node, "require('fs').writeFileSync('/dev/full', 'x')")).kind == "disk_full"


@pytest.mark.parametrize(
    "code",
    [
        "up(); while (true) {}",
        "await 1; up(); while (true) {}",
        "up(); await new Promise(() => {})",
        "setTimeout(() => { up(); for (;;) {} }, 1); await new Promise(() => {})",
        "await new Promise((go) => setTimeout(go, 1)); up(); for (;;) {}",
        "up(); require('child_process').execSync('sleep 600')",
    ],
)
async def test_javascript_interrupt_keeps_the_state(guest: Guest, node: str, code: str) -> None:
    await run(guest, node, "let kept = 1; const up = () => require('fs').writeFileSync('up', 'x')")
    async with await begin(guest, node, code) as channel:
        await wait_for(guest.home / "up")
        await guest.ask("context.interrupt", id=node)
        assert (await collect(channel)).kind in ("interrupted", "exception")
    assert (await run(guest, node, "kept")).text == "1"


async def test_javascript_draws_from_the_kernel_after_a_thaw(guest: Guest, node: str) -> None:
    await guest.ask("thaw", env={"NEW": "1"})
    cell = await run(
        guest,
        node,
        """import {randomUUID, randomBytes, randomInt} from "crypto";
const draws = [Math.random(), Math.random(), crypto.randomUUID(), randomUUID(), randomBytes(8).toString("hex"), randomInt(1e12)];
draws.push(crypto.getRandomValues(new Uint32Array(2)).join());
console.log(new Set(draws.map(String)).size, draws[0] < 1, process.env.NEW)""",
    )
    assert cell.stdout == b"7 true 1\n", cell


async def test_typescript_is_javascript_with_types(guest: Guest, node: str) -> None:
    probe = [str(NODE), "-p", "!!require('module').stripTypeScriptTypes"]
    if subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip() != "true":
        with pytest.raises(SandboxError, match=r"22\.13"):
            await create(guest, "ts")
        return
    context = await create(guest, "ts")
    code = "interface P { a: number }\nenum E { A, B }\nimport { join } from 'path';\nconst p: P = { a: E.B as number };\np"
    assert (await run(guest, context, code)).text.startswith("{ a: 1 }")
    cell = await run(guest, context, "let x: = 1")
    assert cell.error is not None and cell.error["name"] == "SyntaxError" and cell.stderr == b""
    assert (await run(guest, context, "join('a', 'b')")).text == "'a/b'"
