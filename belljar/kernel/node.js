// A JavaScript or TypeScript context: takes messages from the agent, runs cells, tells what came of them.
//
//     node node.js <javascript|typescript>
//
// Cells are evaluated by V8's own REPL mode, which only the inspector offers: `let`, `const` and `class` may be declared again in a
// later cell, `await` works at the top level, and the last expression is the value. Messages are those of belljar/wire/pipe.py: two
// lengths, a JSON object, a blob. They are read by a thread of their own (node_watch.js), which can also end a cell that computes.
"use strict";

const fs = require("node:fs");
const inspector = require("node:inspector");
const module_ = require("node:module");
const path = require("node:path");
const util = require("node:util");
const v8 = require("node:v8");
const { Worker } = require("node:worker_threads");

const { reseed } = require("./node_random.js");
const { INSPECT, encodePart, makeBundle } = require("./node_show.js");
const { transform } = require("./node_source.js");

const MAX_BLOB_BYTES = 64 << 20;
const LANGUAGE = process.argv[2] || "javascript";
const CONTROL_FD = Number(process.env.BELLJAR_CONTROL_FD);
const EXIT = Symbol("exit");

// -- messages

function send(message, blob = Buffer.alloc(0)) {
  // ASCII, as lone surrogates have no UTF-8.
  const ascii = JSON.stringify(message).replace(/[\u0080-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
  const header = Buffer.alloc(8);
  header.writeUInt32BE(ascii.length, 0);
  header.writeUInt32BE(blob.length, 4);
  const data = Buffer.concat([header, Buffer.from(ascii, "latin1"), blob]);
  for (let at = 0; at < data.length; ) at += fs.writeSync(CONTROL_FD, data, at);
}

const inbox = [];
let handling = false;

function listen() {
  delete process.env.BELLJAR_CONTROL_FD;
  const taken = new SharedArrayBuffer(4);
  const watch = new Worker(path.join(__dirname, "node_watch.js"), { workerData: { fd: CONTROL_FD, taken } });
  watch.on("message", ([message, blob]) => {
    if (message.do === "interrupt") {
      Atomics.store(new Int32Array(taken), 0, message.number);
      Atomics.notify(new Int32Array(taken), 0);
      if (cell?.n === message.n) cell.stop?.(new Interrupted());
      return;
    }
    inbox.push([message, Buffer.from(blob)]);
    handleAll();
  });
}

async function handleAll() {
  if (handling) return;
  handling = true;
  while (inbox.length) {
    const [message, blob] = inbox.shift();
    try {
      if (message.do === "run") await run(message.n, message.code ?? blob.toString(), message.stdin);
      else if (message.do === "env") setEnvironment(message);
      else if (message.do === "reseed") reseed();
    } catch (error) {
      process.stderr.write(`the kernel failed: ${util.inspect(error)}\n`); // a cell has broken what we stand on; the next may work
    }
  }
  handling = false;
}

function setEnvironment(message) {
  Object.assign(process.env, message.set);
  try {
    if (message.cwd) process.chdir(message.cwd);
  } catch {} // gone since: we stay where we are
}

// -- running

const session = new inspector.Session();
session.connect();
let cell = null; // the one that runs: {n, stop, position, held, release}

const TAKE = Symbol.for("belljar.take");

function take(remote) {
  // The inspector speaks of objects; this is how to get hold of one.
  if (remote.objectId === undefined) return remote.unserializableValue === undefined ? remote.value : parseNumber(remote.unserializableValue);
  const { objectId } = remote;
  let taken;
  globalThis[TAKE] = (value) => (taken = value);
  const functionDeclaration = `function (value) { globalThis[Symbol.for("belljar.take")](value); }`;
  session.post("Runtime.callFunctionOn", { functionDeclaration, objectId, arguments: [{ objectId }], silent: true });
  session.post("Runtime.releaseObject", { objectId });
  delete globalThis[TAKE];
  return taken;
}

function parseNumber(text) {
  return text.endsWith("n") ? BigInt(text.slice(0, -1)) : Number(text);
}

function evaluate(code) {
  // A value and whether it was thrown. Rejects when the cell is interrupted or exits.
  const current = cell;
  const expression = `${code}\n//# sourceURL=cell-${current.n}`;
  return new Promise((resolve, reject) => {
    current.stop = reject;
    // From the event loop and not from here: an interrupt that ends what runs must leave us, who wait, alone.
    setImmediate(() => {
      // A promise that nobody can resolve any more would be collected, and the inspector would then take the process down. So the
      // first one that is made, which is the cell's own, is kept.
      current.release = v8.promiseHooks.onInit((promise) => (current.held ??= promise));
      session.post("Runtime.evaluate", { expression, replMode: true, awaitPromise: true }, (error, answer) => {
        const details = answer?.exceptionDetails;
        if (error) reject(/terminated/.test(error.message) ? new Interrupted() : error);
        else if (details) {
          current.position = `${details.url ?? "cell"}:${details.lineNumber + 1}:${details.columnNumber + 1}`;
          resolve({ thrown: true, value: take(details.exception ?? { value: details.text }) });
        } else if (answer) resolve({ thrown: false, value: take(answer.result) });
      });
      current.release();
    });
  });
}

class Interrupted extends Error {
  constructor() {
    super("the cell was interrupted");
    this.name = "Interrupted";
  }
}

process.on("SIGINT", () => {}); // meant for the programs that a cell waits for; we get a message

async function run(n, code, stdin) {
  const started = process.hrtime.bigint();
  cell = { n, stop: null, position: "", held: undefined, release: null };
  giveStdin(stdin);
  globalThis.require = module_.createRequire(path.join(process.cwd(), "cell.js"));
  try {
    const { thrown, value } = await evaluate(transform(code, LANGUAGE));
    if (thrown) throw value;
    if (value !== undefined) show(value, { main: true });
  } catch (error) {
    if (error instanceof Interrupted || error?.[EXIT] !== undefined) abandon();
    sendError(n, error);
  }
  const duration_s = Number(process.hrtime.bigint() - started) / 1e9;
  cell = null;
  send({ ev: "done", n, count: null, duration_s, changes: null });
}

function abandon() {
  // What the cell still waits for may come or not; the inspector must not care.
  cell.release?.();
  session.disconnect();
  session.connect();
}

function sendError(n, error) {
  if (error?.[EXIT] !== undefined) {
    send({ ev: "error", n, kind: "exit", name: "SystemExit", value: String(error[EXIT]), traceback: [] });
    return;
  }
  if (error instanceof Interrupted) {
    send({ ev: "error", n, kind: "interrupted", name: "KeyboardInterrupt", value: error.message, traceback: [] });
    return;
  }
  let [name, value, lines] = ["Error", "", []];
  try {
    if (util.types.isNativeError(error) || error instanceof Error) {
      [name, value] = [String(error.name), String(error.message)];
      lines = String(error.stack ?? `${name}: ${value}`).split("\n");
      const ours = lines.findIndex((line) => OURS.test(line));
      if (ours >= 0) lines.splice(ours);
      if (error instanceof SyntaxError && cell.position) lines.push(`    at ${cell.position}`);
    } else {
      [name, value] = ["Thrown", util.inspect(error, INSPECT)];
      lines = [`Uncaught ${value}`];
    }
  } catch {
    value = "an error that cannot be shown";
  }
  const errno = typeof error?.errno === "number" ? Math.abs(error.errno) : null;
  send({ ev: "error", n, name: name.slice(0, 200), value: value.slice(0, 16384), traceback: lines.slice(0, 200).map((line) => line.slice(0, 2000)), errno });
}
const OURS = /^ {4}at .*(node:inspector|belljar\/kernel\/node\.js)|^ {4}at new Promise \(<anonymous>\)$/;

// -- what a cell shows

function show(value, { main = false, raw = false, update = false, display_id = null } = {}) {
  let bundle;
  try {
    bundle = raw ? value : makeBundle(value);
  } catch (error) {
    bundle = { "text/plain": `[a value that cannot be shown: ${String(error?.message).slice(0, 200)}]` };
  }
  const parts = [];
  const blobs = [];
  let total = 0;
  for (const [mime, content] of Object.entries(bundle)) {
    const [kind, data] = encodePart(mime, content);
    if ((total += data.length) > MAX_BLOB_BYTES) throw new RangeError(`a result of more than ${MAX_BLOB_BYTES} bytes cannot be shown`);
    parts.push({ mime, size: data.length, kind });
    blobs.push(data);
  }
  send({ ev: "output", n: cell?.n ?? 0, main, parts, metadata: {}, display_id, update }, Buffer.concat(blobs));
}

// -- what cells find

globalThis.display = (value, options = {}) => show(value, { raw: options.raw === true, update: options.update === true, display_id: options.display_id ?? null });
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;
Object.defineProperty(globalThis, "__dirname", { get: () => process.cwd(), configurable: true });
Object.defineProperty(globalThis, "__filename", { get: () => path.join(process.cwd(), "cell.js"), configurable: true });
process.exit = (code) => {
  const error = new Error("process.exit");
  error[EXIT] = code ?? process.exitCode ?? 0;
  throw error;
};

for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => {
    if (error?.[EXIT] !== undefined) cell?.stop?.(error);
    else process.stderr.write(`Uncaught ${util.inspect(error, INSPECT)}\n`);
  });
}

function giveStdin(text) {
  // process.stdin for this cell: the text that came with it, or nothing.
  const { Readable } = require("node:stream");
  const stream = Readable.from(text ? [Buffer.from(text)] : [], { objectMode: false });
  stream.fd = 0;
  Object.defineProperty(process, "stdin", { value: stream, configurable: true, writable: true, enumerable: true });
}

if (LANGUAGE === "typescript" && !module_.stripTypeScriptTypes) {
  process.stderr.write(`TypeScript needs Node.js 22.13 or later; this is ${process.version}\n`);
  process.reallyExit(1);
}
listen();
send({ ev: "ready", language: LANGUAGE, version: process.versions.node, interrupt: "message" });
