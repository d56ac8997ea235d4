import assert from "node:assert/strict";
import { CommandError, SandboxTimeout } from "@pandastack/sdk";

export default async function ({ make }) {
  const sandbox = await make({ template: "base" });
  const done = await sandbox.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([done.stdout, done.stderr, done.exitCode, done.exit_code], ["out\n", "err\n", 3, 3]);
  assert.ok(done.duration_ms >= 0);
  assert.equal((await sandbox.commands.run("printf 'ü€'")).stdout, "ü€");
  await assert.rejects(sandbox.exec("echo no >&2; exit 4", { check: true }), (problem) => {
    return problem instanceof CommandError && problem.exitCode === 4 && problem.stderr === "no\n";
  });
  await assert.rejects(sandbox.exec("sleep 600", { timeoutSeconds: 1 }), SandboxTimeout);
  assert.equal((await sandbox.runCode("echo $((6 * 7))")).stdout, "42\n");
  assert.equal((await sandbox.runCode("print('it\\'s', 6 * 7)", "python")).stdout, "it's 42\n");

  const out = [];
  const err = [];
  const line = "for i in 1 2 3; do echo $i; done; printf '\\342\\202'; sleep 0.3; printf '\\254'; echo e >&2; exit 7";
  const code = await sandbox.execStream(line, { onStdout: (piece) => out.push(piece), onStderr: (piece) => err.push(piece) });
  assert.deepEqual([out.join(""), err.join(""), code], ["1\n2\n3\n€", "e\n", 7]);
  await assert.rejects(sandbox.execStream("echo before; sleep 600", { timeoutSeconds: 1 }), SandboxTimeout);
}
