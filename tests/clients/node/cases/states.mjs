import assert from "node:assert/strict";
import { BadRequestError, NotFoundError } from "@pandastack/sdk";

export default async function ({ client, make }) {
  const sandbox = await make({ template: "base", persistent: true });
  const status = async () => (await client.sandboxes.get(sandbox.id)).status;
  await sandbox.exec("echo kept > /tmp/kept");
  await sandbox.pause();
  assert.equal(await status(), "paused");
  await assert.rejects(sandbox.exec("true"), (problem) => problem instanceof BadRequestError && problem.statusCode === 409);
  await sandbox.resume();
  await sandbox.hibernate();
  assert.equal(await status(), "hibernated");
  await sandbox.wake();
  await sandbox.wake();
  assert.equal(await status(), "running");
  await sandbox.hibernate();
  assert.equal(await sandbox.filesystem.read("/tmp/kept"), "kept\n"); // what needs the guest wakes it

  assert.equal((await sandbox.setTtl(900)).ttl_seconds, 900);
  assert.equal((await sandbox.setPersistent(false)).persistent, false);
  const life = await sandbox.lifecycle();
  assert.deepEqual([life.ttl_seconds, life.persistent, typeof life.idle_seconds], [900, false, "number"]);

  const taken = await sandbox.snapshot();
  assert.equal(taken.sandbox_id, sandbox.id);
  await sandbox.exec("echo later > /tmp/kept");
  const copy = await make({ template: "base", fromSnapshot: taken.id });
  assert.equal(await copy.filesystem.read("/tmp/kept"), "kept\n");
  assert.deepEqual((await client.snapshots.list({ sandbox_id: sandbox.id })).map((found) => found.id), [taken.id]);
  assert.ok((await client.snapshots.list()).length >= 1);
  assert.equal((await client.snapshots.get(taken.id)).template, "base");
  await client.snapshots.delete(taken.id);
  await assert.rejects(client.snapshots.get(taken.id), NotFoundError);
}
