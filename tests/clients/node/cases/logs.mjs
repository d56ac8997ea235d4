import assert from "node:assert/strict";

export default async function ({ make }) {
  const sandbox = await make({ template: "base" });
  await sandbox.exec("echo one; echo two >&2");
  const read = async (options) => {
    const lines = [];
    for await (const line of sandbox.logs(options)) lines.push(line);
    return lines;
  };
  assert.deepEqual((await read()).sort(), ["one", "two"]);
  assert.deepEqual(await read({ stream: "stderr", follow: false }), ["two"]);

  // Following yields what is there and what comes, nothing else, until the reader leaves.
  const followed = [];
  for await (const line of sandbox.logs({ stream: "stdout", follow: true })) {
    followed.push(line);
    if (line === "one") await sandbox.exec("echo three; echo four >&2");
    if (line === "three") break;
  }
  assert.deepEqual(followed, ["one", "three"]);
}
