import assert from "node:assert/strict";
import { Client, NotFoundError, Sandbox } from "@pandastack/sdk";

export default async function ({ client, make }) {
  const made = await make({ metadata: { team: "blue" }, ttlSeconds: 600 });
  // The client asks for ubuntu-24.04 when nothing is said.
  assert.equal(made.status, "running");
  assert.equal(made.template, "base");
  assert.ok(made.info.cpu >= 1 && made.info.memory_mb >= 128, JSON.stringify(made.info));
  assert.deepEqual(made.info.metadata, { team: "blue" });
  const again = await client.sandboxes.get(made.id);
  assert.equal(again.id, made.id);
  assert.ok((await client.sandboxes.list()).some((found) => found.id === made.id));
  await client.sandboxes.delete(made.id);
  await client.sandboxes.delete(made.id); // gone, and that is no error
  await assert.rejects(client.sandboxes.get(made.id), (problem) => problem instanceof NotFoundError && problem.statusCode === 404);

  // The same without a client of one's own: the address and the token come from the environment.
  const own = await Sandbox.create({ template: "base", persistent: true });
  try {
    assert.equal((await Sandbox.get(own.id, client)).id, own.id);
    assert.ok((await Sandbox.list(new Client())).some((found) => found.id === own.id));
    assert.equal((await own.lifecycle()).persistent, true);
  } finally {
    await own[Symbol.asyncDispose]();
  }
  await assert.rejects(client.sandboxes.get(own.id), NotFoundError);
}
