// New randomness for a JavaScript context whose machine was copied: two copies of one state must not draw the same numbers.
"use strict";

const crypto = require("node:crypto");
const fs = require("node:fs");
const module_ = require("node:module");

function reseed() {
  // V8's generator and OpenSSL's cannot be seeded from here, so from now on numbers come from the kernel's, directly or at one remove.
  Math.random = makeRandom(...new Int32Array(new Uint8Array(urandom(16)).buffer));
  crypto.randomUUID = () => formatUuid(urandom(16));
  crypto.randomBytes = (size, callback) => later(() => urandom(size), callback);
  crypto.randomFillSync = (target, offset = 0, size = target.byteLength - offset) => {
    urandom(size).copy(new Uint8Array(target.buffer ?? target, target.byteOffset ?? 0, target.byteLength), offset);
    return target;
  };
  crypto.randomInt = randomInt;
  for (const [name, value] of [["getRandomValues", crypto.randomFillSync], ["randomUUID", crypto.randomUUID]]) {
    Object.defineProperty(crypto.webcrypto, name, { value, configurable: true, writable: true });
  }
  module_.syncBuiltinESMExports();
}

function urandom(size) {
  const bytes = Buffer.alloc(size);
  const fd = fs.openSync("/dev/urandom", "r");
  try {
    for (let at = 0; at < size; ) at += fs.readSync(fd, bytes, at, size - at, null);
  } finally {
    fs.closeSync(fd);
  }
  return bytes;
}

function makeRandom(a, b, c, d) {
  // sfc32: small, fast, and good enough for what Math.random promises.
  const step = () => {
    const sum = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + sum) | 0;
    return sum >>> 0;
  };
  return () => ((step() >>> 5) * 67108864 + (step() >>> 6)) / 9007199254740992;
}

function formatUuid(bytes) {
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

function randomInt(low, high, callback) {
  if (high === undefined || typeof high === "function") [low, high, callback] = [0, low, high];
  return later(() => low + Math.floor(Number(urandom(6).readUIntBE(0, 6) / 2 ** 48) * (high - low)), callback);
}

function later(make, callback) {
  if (typeof callback !== "function") return make();
  const value = make();
  return void process.nextTick(() => callback(null, value));
}

module.exports = { reseed };
