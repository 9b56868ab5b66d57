import { describe, expect, test } from "vitest";
import { type CodeTest, type CodeTestOptions, codeTests } from "./code.ts";
import { best as sandbox } from "./sandbox/levels.fixture.ts";

const py = (code: string) => `Here it is:\n\`\`\`python\n${code}\n\`\`\`\nDone.`;
const add = py("def add(a, b):\n    print('adding')\n    return a + b");
const run = (reply: string, tests: CodeTest[], more: Partial<CodeTestOptions> = {}) =>
  codeTests(reply, tests, { sandbox, ...more });

describe("python", () => {
  test.each<[string, string, CodeTest, number, string]>([
    ["prints the sum", py("print(sum(map(int, input().split())))"), { stdin: "2 3", stdout: "5\n" }, 1, "1 of 1 tests"],
    ["prints a float", py("print(1/4)"), { stdin: "", stdout: "0.250" }, 1, "1 of 1"],
    ["prints another", py("print(6)"), { stdin: "", stdout: "5" }, 0, 'printed "6\\n", expected "5"'],
    ["throws", py("raise ValueError('no')"), { stdin: "", stdout: "5" }, 0, 'exit code 1: "ValueError: no"'],
    ["is missing", "print(5)", { stdin: "", stdout: "5" }, 0, "no fenced block"],
    ["returns", add, { call: "add", arguments: [1, 2], returns: 3 }, 1, "1 of 1"],
    ["returns another", add, { call: "add", arguments: [1, 2], returns: 4 }, 0, 'returned "3", expected "4"'],
    ["does not define the function", add, { call: "sub", arguments: [1, 2], returns: 4 }, 0, "NameError"],
    ["passes asserts", add, { code: "assert add(1, 1) == 2" }, 1, "1 of 1"],
    ["fails asserts", add, { code: "assert add(1, 1) == 3" }, 0, "AssertionError"],
    [
      "ends before the test",
      py("import sys\ndef add(a, b): return 0\nsys.exit(0)"),
      { code: "assert add(1, 1) == 2" },
      0,
      "ended before the test did",
    ],
    [
      "ends before the call",
      py("import sys\nsys.exit(0)"),
      { call: "add", arguments: [], returns: 1 },
      0,
      "did not return",
    ],
    ["never ends", py("while True: pass"), { stdin: "", stdout: "" }, 0, "exceeded the limit of time"],
  ])("a program that %s", async (_name, reply, wanted, reward, why) => {
    const graded = await run(reply, [wanted], { limits: { cpuSeconds: 1 } });
    expect(graded).toMatchObject({ reward, correct: reward === 1 });
    expect(graded.explanation).toContain(why);
  });
});

test('reward "all" or "share"; "all" stops at the first failing test', async () => {
  const tests: CodeTest[] = [1, 2, 3].map((returns) => ({ call: "add", arguments: [1, 1], returns }));
  expect(await run(add, tests)).toMatchObject({
    reward: 0,
    explanation: expect.stringContaining("0 of the first 1 of 3 tests passed"),
  });
  expect((await run(add, tests, { reward: "share" })).reward).toBeCloseTo(1 / 3);
});

test("javascript", async () => {
  const reply = "```js\nconst double = (x) => [x * 2, { y: x }];\n```";
  const javascript = { language: "javascript" } as const;
  expect(await run(reply, [{ call: "double", arguments: [2], returns: [4, { y: 2 }] }], javascript)).toMatchObject({
    reward: 1,
  });
  expect(await run(reply, [{ code: "if (double(2)[0] !== 5) throw new Error('not 5')" }], javascript)).toMatchObject({
    reward: 0,
  });
});

test("the last closed block counts", async () => {
  expect(
    await run(`${py("print(1)")}\n${py("print(2)")}\n\`\`\`python\nprint(3)`, [{ stdin: "", stdout: "2" }]),
  ).toMatchObject({ reward: 1 });
});

test.each<[string, string, CodeTest]>([
  ["a usage", `${py("def add(a, b): return a + b")}\n${py("print(add(1, 2))")}`, { code: "assert add(1, 1) == 2" }],
  ["an output", `${add}\n\`\`\`\n2\n\`\`\``, { call: "add", arguments: [1, 1], returns: 2 }],
  ["a second draft", `${py("def add(a, b): return a")}\n${add}`, { code: "assert add(1, 1) == 2" }],
  ["another language", `${add}\n\`\`\`js\nvar add = 2;\n\`\`\``, { code: "assert add(1, 1) == 2" }],
  ["an example", `${py("print(int(input()) * 2)")}\n${py("print(6)")}`, { stdin: "4\n", stdout: "8" }],
  ["an assigned function", `${py("add = lambda a, b: a + b")}\n${py("x = 1")}`, { code: "assert add(1, 1) == 2" }],
])("the block that defines what is tested runs: %s", async (_name, reply, wanted) => {
  expect(await run(reply, [wanted])).toMatchObject({ reward: 1 });
});

test("an empty list of tests is an error, not a reward of 0", async () => {
  await expect(run(add, [])).rejects.toThrow("at least one test");
});

const runner = 'import { before, describe, it, test } from "node:test";\n';
const later = "await new Promise((resolve) => setTimeout(resolve, 5));";

describe("a JavaScript test waits for its asynchronous assertions", () => {
  test.each<[string, string]>([
    ["node:test", `${runner}test("a", async () => { ${later} assert.equal(square(3), 9); });`],
    ["await test", `${runner}await test("a", async () => { assert.equal(await square(3), 9); });`],
    [
      "hooks and subtests",
      `describe("d", () => { let v; before(async () => { v = square(3); }); it("a", async (t) => { assert(t); assert.equal(v, 9); }); it.skip("b"); it.todo("c"); });`,
    ],
    ["an asynchronous main", `async function main() { ${later} assert.equal(square(3), 9); }\nmain();`],
    [
      "a promise, a timer and require",
      'const same = require("assert").equal;\nsetTimeout(() => same(square(3), 9), 5);',
    ],
    [
      "a last process.exit(0)",
      "async function main() { assert.equal(await square(3), 9); }\nmain().then(() => process.exit(0));",
    ],
  ])("%s", async (_name, code) => {
    for (const [body, reward] of [
      ["x * x", 1],
      ["5", 0],
    ] as const) {
      const reply = `\`\`\`\nconst square = (x) => ${body};\n\`\`\``;
      expect(await run(reply, [{ code }], { language: "javascript" }), code).toMatchObject({ reward });
    }
  });
});

test.each([
  "square(3).then((r) => assert.equal(r, 9));",
  "await square(3).then((r) => assert.equal(r, 9)).finally(() => {});",
  "square(-1).then(() => assert.fail(), (error) => assert.equal(error.message, 'negative'));",
  "await assert.rejects(square(-1), { name: 'RangeError', message: 'negative' });",
  "await assert.rejects(() => square(-1), RangeError);",
  "const both = [square(1), square(2)];\nassert(both[0] instanceof Promise);\nassert.deepEqual(await Promise.all(both), [1, 4]);",
  "let sum = 0;\nfor await (const x of squares(4)) sum += x;\nassert.equal(sum, 14);",
])("an asynchronous JavaScript program gives the test promises: %s", async (code) => {
  const squares = "async function* squares(n) { for (let x = 0; x < n; x++) yield square(x); }";
  for (const [body, reward] of [
    [`${later} if (x < 0) throw new RangeError('negative'); return x * x;`, 1],
    ["return 5;", 0],
    ["throw new Error('no');", 0],
  ] as const) {
    const reply = `\`\`\`\nconst square = async (x) => { ${body} };\n${squares}\n\`\`\``;
    expect(await run(reply, [{ code }], { language: "javascript" }), body).toMatchObject({ reward });
  }
});

const unit = "import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(add(1, 1), 2)\n";

describe("a Python test runs unittest and functions like pytest", () => {
  test.each<[string, string]>([
    ["unittest.main", `${unit}if __name__ == "__main__": unittest.main(argv=["x"])`],
    ["unittest.main(exit=False)", `${unit}unittest.main(exit=False)`],
    ["a runner", `${unit}unittest.TextTestRunner().run(unittest.TestLoader().loadTestsFromTestCase(T))`],
    ["a case and functions that nothing calls", `${unit}async def test_b():\n  assert add(1, 2) == 3`],
    ["sys.exit(0) at its end", "import sys\nassert add(1, 1) == 2\nsys.exit(0)"],
    ["threads", "import threading\ndef work():\n  assert add(1, 1) == 2\nthreading.Thread(target=work).start()"],
    [
      "asyncio",
      "import asyncio\nasync def main():\n  assert await asyncio.to_thread(add, 1, 1) == 2\nasyncio.run(main())",
    ],
  ])("%s", async (_name, code) => {
    expect(await run(add, [{ code }])).toMatchObject({ reward: 1 });
    expect(await run(py("def add(a, b): return 7"), [{ code }])).toMatchObject({ reward: 0 });
  });
});

test("coroutines of a Python program run when the test awaits them", async () => {
  const reply = py("import asyncio\nasync def add(a, b):\n  await asyncio.sleep(0)\n  return a + b");
  const code =
    "import asyncio\nasync def main():\n  assert await asyncio.gather(add(1, 1), add(1, 2)) == [2, 3]\nasyncio.run(main())";
  expect(await run(reply, [{ code }])).toMatchObject({ reward: 1 });
});

describe("a test that cannot grade is an error, not a reward", () => {
  test.each<[string, "python" | "javascript", string, string]>([
    ["registers no test", "javascript", `${runner}describe("d", () => {});`, "no test of node:test ran"],
    [
      "skips everything",
      "javascript",
      'it.skip("a", () => { assert.equal(add(1, 1), 2); });',
      "no test of node:test ran",
    ],
    [
      "exits before its assertions",
      "javascript",
      "const r = add(1, 1);\nprocess.exit(0);\nassert.equal(r, 2);",
      "line 2 of the test calls process.exit(0)",
    ],
    [
      "never settles",
      "javascript",
      "const r = add(1, 1);\nawait new Promise(() => {});\nassert.equal(r, 2);",
      "never settled",
    ],
    [
      "never settles in a function",
      "javascript",
      "async function main() {\n  const r = add(1, 1);\n  await new Promise(() => {});\n  assert.equal(r, 2);\n}\nmain();",
      "of the test waits",
    ],
    ["uses expect without an import", "javascript", "expect(add(1, 1)).toBe(2);", "uses expect without importing it"],
    ["uses approx without an import", "python", "assert add(1, 1) == approx(2)", "uses approx without importing it"],
    ["uses isclose without an import", "python", "assert isclose(add(1, 1), 2)", "uses isclose without importing it"],
    ["lets a program assert", "python", "assertListEqual(add(1, 1), [2])", "uses assertListEqual without importing it"],
    [
      "lets a JavaScript program assert",
      "javascript",
      "assertSame(add(1, 1), 2);",
      "uses assertSame without importing it",
    ],
    ["uses util without an import", "javascript", "assert(util.isDeepStrictEqual(add(1, 1), 2));", "uses util without"],
    ["uses strictEqual without an import", "javascript", "strictEqual(add(1, 1), 2);", "uses strictEqual without"],
    ["passes a function", "javascript", "assert.equal(add(() => 1, 1), 2);", "functions of its own"],
    ["calls nothing", "python", "def check(candidate): assert candidate(1, 1) == 2", "never uses the program"],
    [
      "exits before its assertions",
      "python",
      "import os\nr = add(1, 1)\nos._exit(0)\nassert r == 2",
      "ends its process",
    ],
    ["does not parse", "python", "assert add(1, 1) ==", "SyntaxError"],
    ["lacks a module", "python", "import missing_module\nassert add(1, 1) == 2", "ModuleNotFoundError"],
    [
      "skips everything",
      "python",
      `${unit.replace("class", '@unittest.skip("")\nclass')}unittest.main(exit=False)`,
      "unittest ran no test",
    ],
  ])("it %s (%s: %s)", async (_name, language, code, why) => {
    const reply = language === "python" ? add : "```\nconst add = (a, b) => a + b;\n```";
    await expect(run(reply, [{ code }], { language })).rejects.toThrow(why);
  });
});

test("a program whose promise is never settled gets 0", async () => {
  const reply = "```\nconst add = () => new Promise(() => {});\n```";
  const limits = { cpuSeconds: 1, seconds: 2 };
  const graded = await run(reply, [{ code: "assert.equal(await add(1, 1), 2)" }], { language: "javascript", limits });
  expect(graded).toMatchObject({ reward: 0, explanation: expect.stringContaining("limit of time") });
});
