import { describe, expect, test } from "vitest";
import { best as sandbox } from "../sandbox/levels.fixture.ts";
import { type CodeTest, type CodeTestOptions, codeTests } from "./code-tests.ts";

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

test("an empty list of tests is an error, not a reward of 0", async () => {
  await expect(run(add, [])).rejects.toThrow("at least one test");
});
