import assert from "node:assert/strict";
import { BadRequestError, SandboxTimeout } from "@pandastack/sdk";

const CHART = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('up')\nplt.show()";

export default async function ({ make }) {
  const sandbox = await make({ template: "code-interpreter" });
  const context = await sandbox.createCodeContext("py");
  assert.equal(context.language, "python");
  const first = await context.runCode("x = 41\nprint('hi')");
  assert.deepEqual([first.stdout, first.stderr, first.exit_code, first.error], ["hi\n", "", 0, undefined]);
  assert.equal((await context.runCode("x + 1")).text, "42");
  const chart = await context.runCode(CHART, { timeoutSeconds: 100 });
  assert.ok(Buffer.from(chart.png, "base64").subarray(1, 4).equals(Buffer.from("PNG")), chart.error);
  const table = await context.runCode("import pandas as pd; pd.DataFrame({'a': [1, 2]})", { timeoutSeconds: 100 });
  assert.match(table.results[0].html, /<table/);
  const failed = await context.runCode("1 / 0");
  assert.equal(failed.exit_code, 1);
  assert.match(failed.error, /ZeroDivisionError/);
  await assert.rejects(context.runCode("while True: pass", { timeoutSeconds: 1 }), SandboxTimeout);
  assert.equal((await context.runCode("x")).text, "41");
  await context.close();
  await assert.rejects(context.runCode("x"), (problem) => problem.statusCode === 404);
  await assert.rejects(sandbox.createCodeContext("cobol"), BadRequestError);

  const script = await sandbox.createCodeContext("javascript");
  assert.equal((await script.runCode("let y = 20; y + 1")).text, "21");
  await script[Symbol.asyncDispose]();
}
