/** Programs that try to get the reward of a test without passing it. */
import { describe, expect, test } from "vitest";
import { type CodeTest, codeTests } from "./code.ts";
import { forgeries, squareTest } from "./forgeries.fixture.ts";
import { best, weak } from "./sandbox/levels.fixture.ts";
import type { Sandbox } from "./sandbox/sandbox.ts";

const limits = { cpuSeconds: 1, seconds: 4 };

const grade = (code: string, wanted: CodeTest, language: "python" | "javascript" = "python", sandbox: Sandbox = best) =>
  codeTests(`\`\`\`\n${code}\n\`\`\``, [wanted], { sandbox, language, limits });

const calls = { call: "square", arguments: [2], returns: 4 };

/** Attacks that only namespaces prevent. */
const reaching = /source|descriptor|process|threads/;

describe.each<[string, Sandbox, typeof forgeries]>([
  ["best level", best, forgeries],
  ["level process", weak, forgeries.filter(([name]) => reaching.test(name))],
])("%s", (_level, sandbox, table) => {
  test.each(table)("a program that %s does not pass asserts", async (_name, code, why) => {
    const { reward, explanation } = await grade(code, squareTest, "python", sandbox);
    expect([reward, explanation]).toEqual([0, expect.stringContaining(why)]);
  });
});

test.each<[string, string, "python" | "javascript", string]>([
  ["NaN", "def square(x): return float('nan')", "python", "not JSON compliant"],
  ["infinity", "def square(x): return float('inf')", "python", "not JSON compliant"],
  ["a function", "def square(x): return square", "python", "not JSON serializable"],
  ["a generator", "def square(x): yield 4", "python", "not JSON serializable"],
  ["nothing, by an exit", "import sys\ndef square(x): sys.exit()", "python", "did not return"],
  ["a forged answer", "print(open(__file__).read())\ndef square(x): return 5", "python", "returned"],
  [
    "too many brackets",
    "import json\njson.dumps = lambda *a, **k: '[' * 300_000\ndef square(x): return 0",
    "python",
    "returned",
  ],
  ["NaN", "const square = () => NaN;", "javascript", "which JSON does not have"],
  ["infinity inside", "const square = () => [1 / 0];", "javascript", "which JSON does not have"],
  ["a function", "const square = () => square;", "javascript", "which JSON does not have"],
  ["undefined", "const square = () => {};", "javascript", "returned"],
  ["a big integer", "const square = () => 4n;", "javascript", "BigInt"],
  ["itself as JSON", "const square = () => ({ toJSON: () => undefined });", "javascript", "returned"],
])(
  "a program that returns %s gets 0 with an explanation, and the run continues",
  async (_name, code, language, why) => {
    const { reward, explanation } = await grade(code, calls, language);
    expect([reward, explanation]).toEqual([0, expect.stringContaining(why)]);
  },
);

test.each<[string, string, string]>([
  [
    "equals everything",
    "const square = () => ({ valueOf: () => 4, toString: () => '4', [Symbol.toPrimitive]: () => 4 });",
    "",
  ],
  ["is a proxy", "const square = () => new Proxy(class {}, { get: () => 4 });", ""],
  ["exits", "const square = () => process.exit(0);", "ended before the test did"],
  ["replaces JSON", "JSON.stringify = () => '[\"value\", true, []]'; const square = () => 0;", ""],
  [
    "replaces the prototype",
    "Number.prototype.valueOf = () => 4; Object.prototype.passed = true; const square = () => 0;",
    "",
  ],
  [
    "brings its own assert",
    "const assert = () => {}; assert.equal = () => {}; const square = () => 0;",
    "AssertionError",
  ],
  [
    "sends a record with methods",
    "Array.prototype.some = () => false; const square = () => ({ valueOf: () => 4, includes: () => true });",
    "not plain data",
  ],
])("a JavaScript program that %s does not pass", async (_name, code, why) => {
  const wanted = { code: "assert.equal(square(2), 4);\nif (square(3) !== 9) throw new Error('not 9');" };
  const { reward, explanation } = await grade(code, wanted, "javascript");
  expect([reward, explanation]).toEqual([0, expect.stringContaining(why)]);
});

test.each<[string, "python" | "javascript", string]>([
  ["abs(square(2) - 2 / 3) < 1e-6", "python", "__sub__ = lambda *a: 0.0"],
  ["not (square(2) - {1, 2})", "python", "__sub__ = lambda *a: set()"],
  ["5 in square(2)", "python", "__contains__ = lambda *a: True"],
  ["square(2).startswith('abc')", "python", "startswith = lambda *a: True"],
  ["square(2).fullmatch('abc')", "python", "fullmatch = lambda *a: True"],
  ["square(2).same_as(4)", "python", "same_as = lambda *a: True"],
  ["all(map(lambda x: square(x) == x * x, [1, 2]))", "python", "__init__ = lambda self: next(iter(()))"],
  [
    "len(square(2)) == 2 and all(a == b for a, b in zip(square(2), [4, 9]))",
    "python",
    "__len__ = lambda s: 2; __iter__ = lambda s: iter(())",
  ],
  ["square(2).includes('abc')", "javascript", "includes() { return true; }"],
  ["square(2).has(5)", "javascript", "has() { return true; }"],
  ["square(2).test('abc')", "javascript", "test() { return true; }"],
  ["square(2).catch((error) => error.message === 'no')", "javascript", "catch() { return true; }"],
  [
    "[4, 9].every((x, i) => square(2)[i] === x)",
    "javascript",
    "constructor() { return new Proxy(class {}, { get: () => 4 }); }",
  ],
])("an object of the program does not receive the expected value: %s", async (check, language, members) => {
  const [program, code] =
    language === "python"
      ? [`class E:\n  ${members}\ndef square(x): return E()`, `assert ${check}`]
      : [`class E { ${members} }\nconst square = (x) => new E();`, `assert(${check});`];
  const { reward, explanation } = await grade(program, { code }, language);
  expect([reward, explanation]).toEqual([0, expect.stringMatching(/not plain data|ProgramError|StopIteration/)]);
});

test.each<["python" | "javascript", string, string]>([
  [
    "python",
    "n = 0\nclass E:\n  def __str__(self):\n    global n\n    n += 1\n    return 'ab' if n == 1 else ''\ndef square(x): return E()",
    "r = square(2)\nassert len(str(r)) == 2\nassert all(c in '37' for c in str(r))",
  ],
  [
    "javascript",
    "let n = 0; const square = () => new (class { toString() { return n++ ? '' : 'ab'; } })();",
    "const r = square(2);\nassert.equal(String(r).length, 2);\nassert([...String(r)].every((c) => '37'.includes(c)));",
  ],
])("an object that a %s function returns shows each check the same text", async (language, program, code) => {
  const { reward, explanation } = await grade(program, { code }, language);
  expect([reward, explanation]).toEqual([0, expect.stringContaining("not plain data")]);
});

test("a coroutine in place of plain data gets 0, and the run continues", async () => {
  const program = "async def square(x): return x * x\ndef count(items): return 2";
  const { reward, explanation } = await grade(program, { code: "assert count({square(2), square(3)}) == 2" });
  expect([reward, explanation]).toEqual([0, expect.stringContaining("a coroutine of the program is not plain data")]);
});

test("a test reads private attributes of the program's object", async () => {
  const program = "class Account:\n  def __init__(self, owner): self._owner = self._kind = owner";
  const code = "account = Account('a')\nassert account._owner == 'a' and account._kind == 'a'";
  expect((await grade(program, { code })).reward).toBe(1);
});

test("a program cannot replace the functions that a test uses", async () => {
  const own =
    "def abs(x): return 0\ndef sorted(x): return [1, 2]\nclass math:\n  def isclose(*a): return True\ndef square(x): return 5\ndef order(x): return [2, 1]";
  for (const code of [
    "assert abs(square(2) - 4) < 1e-9",
    "assert math.isclose(square(2), 4)",
    "assert order([2, 1]) == sorted([2, 1])",
  ]) {
    expect((await grade(own, { code })).explanation).toContain("AssertionError");
  }
});

test("a program cannot define the Counter that a test compares with", async () => {
  const wanted = { code: "assert Counter(count('aab')) == Counter('aab')" };
  const forged = "def Counter(items): return 0\ndef count(text): return ''";
  expect((await grade(forged, wanted)).explanation).toContain("AssertionError");
  const right = "from collections import Counter\ndef count(text): return Counter(text)";
  expect((await grade(right, wanted)).reward).toBe(1);
  const own = "class Counter:\n  def __init__(self, by): self.by = by\n  def step(self): return self.by";
  expect((await grade(own, { code: "assert Counter(2).step() == 2" })).reward).toBe(1);
});

test("tests use functions, classes, generators, exceptions and changed arguments of the program", async () => {
  const code = `
import math, collections, re
class Stack:
  def __init__(self, items=()): self.items = list(items)
  def push(self, item): self.items.append(item)
  def __len__(self): return len(self.items)
  def __getitem__(self, index): return self.items[index]
  def __str__(self): return "<" + ",".join(map(str, self.items)) + ">"
def primes():
  n = 2
  while True:
    if all(n % d for d in range(2, n)): yield n
    n += 1
def order(items): items.sort()
def fail(x): raise ValueError("bad " + str(x))
def both(x, *, y=(1, 2)): return x, y, {x}, {1: (x,)}, b"b", None, 10**30, float("inf")
def count(text): return collections.Counter(text)
def top(stack): return stack[-1]
def word(): return re.compile("[a-z]+", re.I)
`;
  const wanted = `
import itertools
stack = Stack([1])
stack.push(2)
assert len(stack) == 2 and stack[0] == 1 and str(stack) == "<1,2>" and stack.items == [1, 2] and top(stack) == 2
assert list(itertools.islice(primes(), 4)) == [2, 3, 5, 7]
items = [3, 1, 2]
order(items)
assert items == [1, 2, 3]
try:
  fail(5)
  assert False
except ValueError as error:
  assert str(error) == "bad 5"
assert both("x") == ("x", (1, 2), {"x"}, {1: ("x",)}, b"b", None, 10**30, math.inf)
assert count("aab") == {"a": 2, "b": 1}
assert word().fullmatch("aB") and not word().match("1")
def check(candidate):
  assert candidate("aab")["a"] == 2
check(count)
`;
  expect(await grade(code, { code: wanted })).toMatchObject({ reward: 1 });
  const javascript = `
class Stack { items = []; push(x) { this.items.push(x); return this; } get size() { return this.items.length; } }
function* count(n) { for (let i = 0; i < n; i++) yield i; }
const order = (items) => { items.sort(); };
const later = async (x) => new Map([[x, new Set([1n, undefined, -0])]]);
const fail = () => { throw new RangeError("bad"); };
const word = () => /^[a-z]+$/i;`;
  const checks = `
const stack = new Stack().push(1).push(2);
assert.equal(stack.size, 2);
assert.deepEqual([...count(3)], [0, 1, 2]);
const items = ["b", "a"];
order(items);
assert.deepEqual(items, ["a", "b"]);
assert.deepStrictEqual(await later("x"), new Map([["x", new Set([1n, undefined, -0])]]));
assert.throws(() => fail(), RangeError);
assert(word().test("aB") && !word().test("1"));`;
  expect(await grade(javascript, { code: checks }, "javascript")).toMatchObject({ reward: 1 });
});
