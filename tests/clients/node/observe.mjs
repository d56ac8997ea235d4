// Watches every public call of the client without changing what it does: which calls were made, and how each ended.
import { Client, CodeContext, Sandbox } from "@pandastack/sdk";

export const calls = [];

// The places that users call things by.
function places() {
  const client = new Client({ apiUrl: "http://localhost", apiKey: "none" });
  const sandbox = Sandbox.fromInfo({ id: "none" }, client);
  const found = [
    ["client", Client.prototype],
    ["Sandbox", Sandbox],
    ["sandbox", Sandbox.prototype],
    ["context", CodeContext.prototype],
  ];
  for (const [owner, value] of [["client", client], ["sandbox", sandbox]]) {
    for (const [name, part] of Object.entries(value)) {
      const kind = Object.getPrototypeOf(part ?? {});
      if (kind && kind.constructor !== Object && kind !== Client.prototype && typeof part === "object") found.push([`${owner}.${name}`, kind]);
    }
  }
  return found;
}

function callsOf([place, target]) {
  return Reflect.ownKeys(target)
    .filter((key) => key === Symbol.asyncDispose || (typeof key === "string" && !key.startsWith("_")))
    .filter((key) => !["constructor", "length", "name", "prototype", "fromInfo"].includes(key))
    .filter((key) => typeof Object.getOwnPropertyDescriptor(target, key).value === "function")
    .map((key) => [typeof key === "symbol" ? `await using ${place}` : `${place}.${key}`, target, key]);
}

export function surface() {
  return places().flatMap(callsOf).map(([call]) => call);
}

export function observe() {
  for (const [call, target, key] of places().flatMap(callsOf)) {
    const original = target[key];
    const watched = function (...given) {
      const note = (problem) => calls.push({ call, error: problem && described(problem) });
      let result;
      try {
        result = original.apply(this, given);
      } catch (problem) {
        note(problem);
        throw problem;
      }
      if (typeof result?.[Symbol.asyncIterator] === "function") return watchedItems(result, note);
      if (typeof result?.then !== "function") note();
      else result.then(() => note(), note);
      return result;
    };
    Object.defineProperty(target, key, { value: watched, configurable: true, writable: true });
  }
}

async function* watchedItems(items, note) {
  try {
    yield* items;
  } catch (problem) {
    note(problem);
    throw problem;
  }
  note();
}

function described(problem) {
  return { name: problem.name, status: problem.statusCode ?? null, message: problem.message };
}
