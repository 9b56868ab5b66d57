/**
 * Runs test.mjs, in which every unknown name belongs to a program that runs in another sandbox. The program's code does not
 * run here: its functions and objects are stand-ins that exchange plain data with it. Exits with 0 if test.mjs runs to its end.
 */
import assert from "node:assert";
import { readFileSync, readSync, writeSync } from "node:fs";
import { decode, encode } from "./plain-data.mjs";

const channel = 4;
const stands = new WeakMap();
const builtInErrors = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };

function fail(error) {
  const at = /test\.mjs:(\d+)/.exec(`${error?.stack}`);
  writeSync(2, `\n${at ? `line ${at[1]} of the test: ` : ""}${error?.name}: ${`${error?.message}`.split("\n")[0]}\n`);
  process.exit(1);
}

let received = Buffer.alloc(0);

function readLine() {
  const chunk = Buffer.alloc(65_536);
  const pieces = [received];
  while (!pieces.at(-1).includes(10)) {
    const count = readSync(channel, chunk);
    if (count === 0) fail(new Error("the program ended"));
    pieces.push(Buffer.from(chunk.subarray(0, count)));
  }
  const all = Buffer.concat(pieces);
  const end = all.indexOf(10);
  received = all.subarray(end + 1);
  return all.toString("utf8", 0, end);
}

function pack(value, mayBePlain) {
  const number = stands.get(value);
  if (number !== undefined) return { object: [number, ""] };
  if (!mayBePlain) throw new TypeError("a test can pass only plain data and the program's own objects");
  return undefined;
}

function ask(operation, ...args) {
  const line = Buffer.from(`${JSON.stringify(encode([operation, args], pack))}\n`);
  let answer;
  try {
    for (let at = 0; at < line.length; ) at += writeSync(channel, line, at);
    answer = readLine();
  } catch {
    fail(new Error("the program ended"));
  }
  let [kind, content, more] = [];
  try {
    [kind, content, more] = JSON.parse(answer);
    if (kind === "value") [content, more] = [decode(content, standIn), more.map((each) => decode(each, standIn))];
  } catch {
    fail(new Error("the program's answer is not plain data"));
  }
  if (kind !== "value") {
    const Kind = Object.hasOwn(builtInErrors, content) ? builtInErrors[content] : Error;
    throw new Kind(`${more}`);
  }
  for (const [index, changed] of more.entries()) update(args[index + 2], changed);
  return content;
}

/** A function that modifies its arguments has modified copies; this repeats the changes in the test. */
function update(old, changed) {
  if (stands.has(old)) return;
  if (Array.isArray(old) && Array.isArray(changed)) old.splice(0, old.length, ...changed);
  else if (Object.getPrototypeOf(old ?? 0) === Object.prototype && changed !== null && typeof changed === "object") {
    for (const key of Object.keys(old)) delete old[key];
    for (const [key, value] of Object.entries(changed))
      Object.defineProperty(old, key, { value, writable: true, enumerable: true, configurable: true });
  }
}

/** Represents a value of the program that is not plain data. Tests can use it but not compare it. */
function standIn([number, kind]) {
  const refuse = () => {
    throw new TypeError(`${kind} of the program is not plain data, so it cannot be compared`);
  };
  const self = new Proxy(function standIn() {}, {
    apply: (_target, receiver, args) => ask("call", self, receiver, ...args),
    construct: (_target, args) => ask("construct", self, ...args),
    get(_target, key) {
      if (key === Symbol.iterator) return ask("iterator", self);
      return typeof key === "symbol" ? (key === Symbol.toPrimitive ? refuse : undefined) : ask("get", self, key);
    },
    set: (_target, key, value) => ask("set", self, String(key), value),
    has: (_target, key) => ask("has", self, String(key)) === true,
    getPrototypeOf: refuse,
    setPrototypeOf: refuse,
    isExtensible: refuse,
    preventExtensions: refuse,
    ownKeys: refuse,
    getOwnPropertyDescriptor: refuse,
    defineProperty: refuse,
    deleteProperty: refuse,
  });
  stands.set(self, number);
  return self;
}

// The program cannot replace a name of the language, with which the test checks.
globalThis.assert = assert;
for (const [name] of readFileSync("test.mjs", "utf8").matchAll(/[\p{ID_Start}$_][\p{ID_Continue}$]*/gu)) {
  if (name in globalThis) continue;
  Object.defineProperty(globalThis, name, { configurable: true, get: () => ask("name", name) });
}
process.on("uncaughtException", fail);
await import("./test.mjs").catch(fail);
process.exit(0);
