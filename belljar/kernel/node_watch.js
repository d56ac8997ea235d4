// A thread beside a JavaScript context's own: reads what the agent sends, also while a cell keeps the other thread busy.
//
// An interrupt is first a message like any other: a cell that waits is left waiting, and loses nothing. If that is not taken within a
// moment, a cell is computing, and V8 is told to end whatever runs.
"use strict";

const fs = require("node:fs");
const inspector = require("node:inspector");
const { parentPort, workerData } = require("node:worker_threads");

const TAKEN_WITHIN_MS = 200;

const session = new inspector.Session();
session.connectToMainThread();
const taken = new Int32Array(workerData.taken); // the number of the last interrupt that the other thread has seen
let interrupts = 0;

function pass(message, blob) {
  if (message.do !== "interrupt") {
    parentPort.postMessage([message, blob]);
    return;
  }
  const before = interrupts++;
  parentPort.postMessage([{ ...message, number: interrupts }, blob]);
  if (Atomics.load(taken, 0) === before && Atomics.wait(taken, 0, before, TAKEN_WITHIN_MS) === "timed-out") {
    session.post("Runtime.terminateExecution");
  }
}

const chunk = Buffer.alloc(256 * 1024);
let received = Buffer.alloc(0);
for (;;) {
  let size = 0;
  try {
    size = fs.readSync(workerData.fd, chunk);
  } catch {} // the agent is gone, one way or the other
  if (!size) process.kill(process.pid, "SIGKILL");
  received = Buffer.concat([received, chunk.subarray(0, size)]);
  while (received.length >= 8) {
    const [json, blob] = [received.readUInt32BE(0), received.readUInt32BE(4)];
    if (received.length < 8 + json + blob) break;
    pass(JSON.parse(received.toString("utf8", 8, 8 + json)), received.subarray(8 + json, 8 + json + blob));
    received = received.subarray(8 + json + blob);
  }
}
