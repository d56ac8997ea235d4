import assert from "node:assert/strict";
import { BadRequestError } from "@pandastack/sdk";

export default async function ({ client, make }) {
  const sandbox = await make({ template: "base", metadata: { a: "1" } });
  await sandbox.filesystem.write("/tmp/who", "parent");
  const child = await sandbox.fork({ metadata: { b: "2" } });
  assert.notEqual(child.id, sandbox.id);
  assert.deepEqual(child.info.metadata, { a: "1", b: "2", fork_parent_id: sandbox.id });
  await child.filesystem.write("/tmp/who", "child");
  assert.equal(await sandbox.filesystem.read("/tmp/who"), "parent");
  assert.equal(await child.filesystem.read("/tmp/who"), "child");
  await child.kill();

  const bare = await sandbox.fork();
  assert.equal(await bare.filesystem.read("/tmp/who"), "parent");
  await bare.kill();

  const [first, second] = await sandbox.forkTree({ count: 2, metadata: { run: "7" } });
  assert.equal(first.info.metadata.fork_tree_id, second.info.metadata.fork_tree_id);
  await assert.rejects(sandbox.promote(), BadRequestError);
  const promoted = await second.promote({ cleanupSiblings: true });
  assert.deepEqual([promoted.winner, promoted.deleted], [second.id, [first.id]]);
  await second.kill();

  const told = [];
  const found = await sandbox.explore(
    [{ label: "bad", cmd: "exit 1" }, { label: "good", cmd: "printenv WORD > /home/user/result", env: { WORD: "it's" } }],
    { captureFiles: "/home/user", onOutcome: (outcome) => told.push(outcome.label) },
  );
  assert.deepEqual(found.errors, []);
  assert.deepEqual(told.sort(), ["bad", "good"]);
  assert.equal(found.winnerOutcome.label, "good");
  assert.deepEqual(found.winnerOutcome.filesChanged, ["/home/user/result"]);
  assert.ok(found.treeId.startsWith("tree-") && found.reaped.length === 1, JSON.stringify(found.reaped));
  assert.equal(await found.winner.filesystem.read("/home/user/result"), "it's\n");
  await found.winner.kill();
  const left = (await client.sandboxes.list()).filter((other) => other.info.metadata.fork_parent_id === sandbox.id);
  assert.deepEqual(left.map((other) => other.id), []);
}
