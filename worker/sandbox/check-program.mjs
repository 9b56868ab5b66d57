/**
 * Runs test.mjs, in which every unknown name belongs to a program that runs in another sandbox. The program's code does not
 * run here: its functions and objects are proxies that exchange plain data with it. Exits with one of three codes after
 * test.mjs, its timers and promises, and the tests of node:test have ended, and writes the reason on stderr.
 */
import assert from "node:assert";
import { createHook } from "node:async_hooks";
import { readFileSync, readSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { after, afterEach, before, beforeEach, describe, it, test } from "node:test";
import { openSession } from "./proxies.mjs";
import { results } from "./test-results.mjs";

// Other codes than Node's own, because a test can also end by itself. `checkEnds` in code.ts repeats them.
const [passed, failed, broken] = [40, 41, 42];

const channel = 4;
let received = Buffer.alloc(0);

function readLine() {
  const chunk = Buffer.alloc(65_536);
  const pieces = [received];
  while (!pieces.at(-1).includes(10)) {
    const count = readSync(channel, chunk);
    if (count === 0) return undefined;
    pieces.push(Buffer.from(chunk.subarray(0, count)));
  }
  const all = Buffer.concat(pieces);
  const end = all.indexOf(10);
  received = all.subarray(end + 1);
  return all.toString("utf8", 0, end);
}

function exchange(text) {
  const line = Buffer.from(`${text}\n`);
  try {
    for (let at = 0; at < line.length; ) at += writeSync(channel, line, at);
    return readLine();
  } catch {
    return undefined;
  }
}

const source = readFileSync("test.mjs", "utf8");
const session = openSession(exchange, source);

/** Where promises that are not settled were made. Their ids are those of async_hooks. */
const pending = new Map();
createHook({
  init(id, type) {
    if (type === "PROMISE") pending.set(id, new Error());
  },
  promiseResolve: (id) => pending.delete(id),
}).enable();

const lineOf = (frames) => /test\.mjs:(\d+)/.exec(frames)?.[1];

/** Whether the first of these frames is a function of the test. The module itself has no name and no caller in the test. */
function isFunction(frames) {
  const [first = "", ...more] = frames;
  return lineOf(first) !== undefined && (/ \(/.test(first) || more.some(lineOf));
}

/** Without Node's own. */
const framesOf = ({ stack }) =>
  stack.split("\n").filter((line) => /^ +at /.test(line) && !/node:internal|check-program\.mjs/.test(line));

/** The line of the test in which an asynchronous function waits for a promise that is never settled. */
const lineWaiting = () => lineOf([...pending.values()].map(framesOf).find(isFunction)?.[0]);

let [error, exitedAt, imported] = [];
const exit = process.exit;
process.exit = (code) => {
  const frames = framesOf(new Error());
  exitedAt ??= { line: lineOf(frames.join()), waits: !imported && !isFunction(frames) && lineWaiting() !== undefined };
  exit(code);
};

/** Why the test is at fault for a process that ended without an error, if it is. */
function faultOfTest() {
  if (results.hung.length > 0) return `the test "${results.hung[0]}" never ends`;
  if (exitedAt !== undefined) {
    const rest = source.split("\n").slice(Number(exitedAt.line));
    const timers = process.getActiveResourcesInfo().some((name) => /Timeout|Immediate/.test(name));
    const checksFollow = rest.some((text) => /\bassert\b|\bthrow\b/.test(text));
    if (results.used || exitedAt.waits || timers || checksFollow) {
      return `line ${exitedAt.line} of the test calls process.exit(0) before all checks have run`;
    }
    return undefined;
  }
  if (!imported) return "the test waits for a promise that is never settled";
  const line = lineWaiting();
  return line && `line ${line} of the test waits for a promise that is never settled`;
}

/** What grades no program, as the source shows. It is found before the program runs. */
function faultOfSource() {
  const lines = source.split("\n");
  const ends = lines.findIndex((line) => /^process\.exit\(0?\)/.test(line));
  if (ends >= 0 && lines.slice(ends + 1).some((line) => /\bassert\b|\bthrow\b/.test(line))) {
    return `line ${ends + 1} of the test calls process.exit(0) before all checks have run`;
  }
  const open = lines.findIndex((line) =>
    /await new Promise\(\s*(?:\(\w*\)|\w+|function\s*\(\w*\))\s*(?:=>)?\s*\{\s*\}\s*\)/.test(line),
  );
  if (open >= 0) return `line ${open + 1} of the test waits for a promise that is never settled`;
  const code = source.replace(/\/\*[\s\S]*?\*\/|\/\/.*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/g, " ");
  for (const name of libraries) {
    const own = new RegExp(`\\b(?:import|const|let|var|function|class)\\b[^;=]*(?<![\\w$])${name}(?![\\w$])`);
    const used = new RegExp(`(?<![.\\w$])${name}\\s*[.(]`);
    if (used.test(code) && !own.test(code)) return `the test uses ${name} without importing it`;
  }
  for (const { 0: call, 1: name, index } of code.matchAll(/(?<![.\w$])([A-Za-z_$][\w$]*)\(/g)) {
    const isOwn = new RegExp(
      `\\b(?:import|const|let|var|function|class)\\b[^;=(]*(?<![\\w$])${name.replaceAll("$", "\\$")}(?![\\w$])`,
    );
    if (name in globalThis && !lookedUp.has(name)) continue;
    if (keywords.has(name) || isOwn.test(code)) continue;
    if (/=>|(?<![\w$])function(?![\w$])/.test(outermost(code.slice(index + call.length)))) {
      const line = code.slice(0, index).split("\n").length;
      return `line ${line} of the test passes functions of its own to the program, but only plain data can be passed`;
    }
  }
  return undefined;
}

const keywords = new Set("if for while switch catch function async await return typeof with super".split(" "));

/** The arguments of a call, without what is in brackets, up to its end. */
function outermost(code) {
  let [depth, text] = [0, ""];
  for (const each of code) {
    if (")]}".includes(each) && depth-- === 0) return text;
    if (depth === 0) text += each;
    if ("([{".includes(each)) depth++;
  }
  return text;
}

function judge(code) {
  if (session.broken !== undefined) return [broken, session.broken];
  const why = error ?? results.failures[0] ?? session.wrong;
  const nothing = results.used && results.ran === 0 ? "no test of node:test ran" : undefined;
  if (!session.used) return [broken, why ?? faultOfTest() ?? nothing ?? "the test never uses the program"];
  if (why !== undefined) return [failed, why];
  // After the program has run, its values may have led there.
  const fault = code === 0 || code === 13 || results.hung.length > 0 ? faultOfTest() : undefined;
  if (fault !== undefined) return [failed, fault];
  if (code !== 0) return [failed, `the test ended with exit code ${code}`];
  return nothing === undefined ? [passed, ""] : [failed, nothing];
}

function fail(thrown) {
  const line = lineOf(`${thrown?.stack}`);
  const place = line ? `line ${line} of the test: ` : "";
  error ??= `${place}${thrown?.name}: ${`${thrown?.message}`.split("\n")[0]}`;
  exit(1);
}

process.on("exit", (code) => {
  const [verdict, why] = judge(code);
  writeSync(2, `\n${why}\n`);
  process.exitCode = verdict;
});
process.on("uncaughtException", fail);

// The program cannot replace a name of the language or of a test runner, with which the test checks.
const runner = { describe, suite: describe, it, test, before, after, beforeEach, afterEach };
Object.assign(globalThis, runner, {
  beforeAll: before,
  afterAll: after,
  assert,
  require: createRequire(import.meta.url),
});
/** Names that are the program's. */
const lookedUp = new Set();
const libraries = new Set(
  "expect jest vi chai should sinon strictEqual deepStrictEqual isDeepStrictEqual util lodash module exports _".split(
    " ",
  ),
);
for (const [name] of source.matchAll(/[\p{ID_Start}$_][\p{ID_Continue}$]*/gu)) {
  if (name in globalThis) continue;
  lookedUp.add(name);
  const get = () => {
    if (!libraries.has(name) && !name.startsWith("assert")) return session.named(name);
    const why = `the test uses ${name} without importing it`;
    if (session.ran) session.wrong ??= why;
    else session.broken ??= why;
    return exit(1);
  };
  Object.defineProperty(globalThis, name, { configurable: true, get });
}
session.broken = faultOfSource();
if (session.broken !== undefined) exit(1);
await import("./test.mjs").then(() => (imported = true), fail);
