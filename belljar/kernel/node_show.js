// How a value of a JavaScript context is shown: as a bundle of MIME types.
"use strict";

const util = require("node:util");

const MAX_TEXT = 1 << 20; // characters of a value's text
const INSPECT = { depth: 4, maxArrayLength: 200, maxStringLength: 1 << 16, breakLength: 100 };

function encodePart(mime, content) {
  if (content instanceof Uint8Array) return ["binary", Buffer.from(content)];
  if (typeof content !== "string") return ["json", Buffer.from(JSON.stringify(content) ?? "null")];
  if (/^image\/(?!svg)|^application\/pdf$/.test(mime)) return ["binary", Buffer.from(content, "base64")];
  return [/[/+]json$/.test(mime) ? "json" : "text", Buffer.from(content)];
}

function makeBundle(value) {
  const own = value?.[Symbol.for("Jupyter.display")];
  if (typeof own === "function") return own.call(value);
  const bundle = { "text/plain": util.inspect(value, INSPECT).slice(0, MAX_TEXT) };
  if (isPlain(value)) {
    const json = JSON.stringify(value);
    if (json !== undefined && json.length <= MAX_TEXT) bundle["application/json"] = json;
  }
  return bundle;
}

function isPlain(value, budget = { left: 100000 }, above = new Set()) {
  // Whether JSON would say the same: arrays and plain objects of texts, numbers, booleans and null.
  if (typeof value !== "object" || value === null) return false;
  if (above.has(value)) return false;
  above.add(value);
  const proto = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && proto !== Object.prototype && proto !== null) return false;
  for (const key of Reflect.ownKeys(value)) {
    if ((budget.left -= 1) < 0 || typeof key === "symbol") return false;
    if (Array.isArray(value) && key === "length") continue;
    const property = Object.getOwnPropertyDescriptor(value, key);
    if (!("value" in property) || !property.enumerable) return false;
    const item = property.value;
    const simple = item === null || ["string", "boolean"].includes(typeof item) || (typeof item === "number" && Number.isFinite(item));
    if (!simple && !isPlain(item, budget, above)) return false;
  }
  above.delete(value);
  return true;
}

module.exports = { INSPECT, encodePart, makeBundle };
