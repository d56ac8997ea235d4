// The TypeScript example of "An Open-Source OpenAI Code Interpreter Alternative". Its names `PandaStack` and `delete` are not in the
// published client, which has `Client` and `kill`; and the page has its data file already.
import assert from "node:assert/strict";
import { Client as PandaStack } from "@pandastack/sdk";

export default async function () {
  const ps = new PandaStack(); // reads PANDASTACK_API_KEY (prefix pds_)
  const sbx = await ps.sandboxes.create({ template: "code-interpreter", ttlSeconds: 300 });
  await sbx.filesystem.write("/workspace/sales.csv", "region,revenue\nnorth,3\nsouth,4\nnorth,5\n");

  const ctx = await sbx.createCodeContext();
  await ctx.runCode("import pandas as pd; df = pd.read_csv('/workspace/sales.csv')");

  const ex = await ctx.runCode("df.groupby('region')['revenue'].sum().plot.bar()", { timeoutSeconds: 30 });
  assert.ok(Buffer.from(ex.png, "base64").subarray(1, 4).equals(Buffer.from("PNG")), ex.error);
  assert.ok(ex.results.length >= 1);

  await sbx.kill();
}
