import assert from "node:assert/strict";
import { AuthError, Client, NetworkError, NotFoundError } from "@pandastack/sdk";

export default async function ({ client, make }) {
  assert.equal(typeof (await client.me()).workspace, "string");
  const made = await client.tokens.create("from node");
  assert.match(made.token, /^pds_[0-9a-f]{32}$/);
  const other = new Client({ apiUrl: client.apiUrl, apiKey: made.token });
  assert.equal((await other.me()).workspace, (await client.me()).workspace);
  assert.ok((await client.tokens.list()).some((found) => found.prefix === made.prefix && found.label === "from node"));
  await client.tokens.revoke(made.prefix);
  await assert.rejects(other.me(), (problem) => problem instanceof AuthError && problem.statusCode === 401);
  await assert.rejects(client.tokens.revoke(made.prefix), NotFoundError);
  await client.tokens.revoke((await client.tokens.create()).prefix);

  const names = (await client.templates.list()).map((found) => found.name);
  assert.ok(names.includes("base"), names.join());
  const base = await client.templates.get("base");
  assert.ok(base.cpu >= 1 && base.memory_mb >= 128 && base.size_bytes > 0);
  assert.deepEqual(await client.templates.builds(), []);
  await assert.rejects(client.templates.get("none"), NotFoundError);
  await assert.rejects(client.templates.delete("base"), (problem) => problem instanceof AuthError && problem.statusCode === 403);

  await assert.rejects(new Client({ apiUrl: "http://127.0.0.1:9" }).me(), NetworkError);
  const sandbox = await make({ template: "base" });
  assert.equal(sandbox.previewUrl(3000), `https://3000-${sandbox.id}.127.0.0.1`);
  client.previewHost = "localhost:8080";
  assert.equal(sandbox.previewUrl(3000, "http"), `http://3000-${sandbox.id}.localhost:8080`);
  assert.deepEqual(await sandbox.previewUrls(), {});
}
