// What this server does not have: every call ends at once, with an error of the client's own.
import assert from "node:assert/strict";

const BUILDS = {
  build: [{ name: "mine", rootfs: new Uint8Array([1, 2, 3]) }],
  register: [{ name: "mine", imageRef: "registry/mine:1" }],
  buildFromDockerfile: [{ name: "mine", dockerfile: "FROM scratch\n" }],
  buildStatus: ["none"],
  buildLogs: ["none"],
  waitForBuild: ["none"],
};

async function ending(call) {
  try {
    const result = await call();
    if (typeof result?.[Symbol.asyncIterator] === "function") for await (const item of result) void item;
  } catch (problem) {
    return problem;
  }
}

export default async function ({ client }) {
  const tried = Object.entries(BUILDS).map(([name, given]) => ["templates", name, given]);
  for (const place of ["functions", "schedules", "databases", "apps", "volumes"]) {
    const names = Object.getOwnPropertyNames(Object.getPrototypeOf(client[place])).filter((name) => name !== "constructor");
    tried.push(...names.map((name) => [place, name, name === "deploy" ? [{ name: "mine", code: "1" }] : ["none", "none", "none"]]));
  }
  const wrong = [];
  for (const [place, name, given] of tried) {
    const problem = await ending(() => client[place][name](...given));
    const status = problem?.statusCode ?? Number(/failed.*\b(\d{3})\b/.exec(problem?.message)?.[1]);
    if (!(status >= 400 && status < 500)) wrong.push(`${place}.${name}: ${problem}`);
  }
  assert.deepEqual(wrong, []);
}
