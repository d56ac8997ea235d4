import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { NotFoundError } from "@pandastack/sdk";

export default async function ({ make, folder }) {
  const sandbox = await make({ template: "base" });
  const fs = sandbox.filesystem;
  const path = "/tmp/deep/er/file +ü.txt";
  assert.deepEqual(await fs.write(path, "tëxt"), { path, bytes: 5 });
  assert.equal(await fs.read(path), "tëxt");
  await fs.write("/tmp/deep/bytes", new Uint8Array([0, 1, 254, 255]));
  assert.equal((await sandbox.exec("sha256sum < /tmp/deep/bytes; wc -c < /tmp/deep/bytes")).stdout.split("\n")[1], "4");
  await fs.write("/tmp/deep/empty", "");
  assert.equal(await fs.read("/tmp/deep/empty"), "");
  const listed = await fs.list("/tmp/deep");
  assert.deepEqual(listed.map((entry) => [entry.name, entry.is_dir, entry.path]), [
    ["bytes", false, "/tmp/deep/bytes"],
    ["empty", false, "/tmp/deep/empty"],
    ["er", true, "/tmp/deep/er"],
  ]);
  const found = await fs.stat(path);
  assert.deepEqual([found.name, found.size, found.is_dir, found.path], ["file +ü.txt", 5, false, path]);
  assert.equal(await fs.exists("/tmp/deep"), true);
  assert.equal(await fs.exists("/tmp/shallow"), false);
  const walked = [];
  for await (const { dir, dirs, files } of fs.walk("/tmp/deep")) walked.push([dir, dirs.length, files.length]);
  assert.deepEqual(walked, [["/tmp/deep", 1, 2], ["/tmp/deep/er", 0, 1]]);
  await writeFile(`${folder}/up`, "up and down");
  await fs.upload(`${folder}/up`, "/tmp/up");
  await fs.download("/tmp/up", `${folder}/new/down`);
  assert.equal(await readFile(`${folder}/new/down`, "utf8"), "up and down");
  await assert.rejects(fs.read("/tmp/none"), NotFoundError);
  await assert.rejects(fs.stat("/tmp/none"), NotFoundError);
  await assert.rejects(fs.list("/tmp/none"), NotFoundError);
}
