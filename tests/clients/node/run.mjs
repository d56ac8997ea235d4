// node run.mjs CASE: runs one case against the server in the environment and prints, as JSON, how each call of the client ended.
// node run.mjs: prints every public call that the client has.
import { pathToFileURL } from "node:url";
import { Client } from "@pandastack/sdk";
import { calls, observe, surface } from "./observe.mjs";

const [, , file] = process.argv;
if (file === undefined) {
  console.log(JSON.stringify(surface()));
} else {
  observe();
  const { default: run } = await import(pathToFileURL(file));
  const client = new Client({ timeoutMs: 120_000 });
  const made = [];
  // A sandbox that ends with the case.
  const make = async (options) => {
    made.push(await client.sandboxes.create(options));
    return made.at(-1);
  };
  try {
    await run({ client, make, folder: process.cwd() });
  } finally {
    for (const sandbox of made) await sandbox.kill();
  }
  console.log(JSON.stringify(calls));
}
