/** Replies that once blocked a grader, and everything else, for seconds, minutes or without end. */
// Slow: patterns that backtrack until their time limit.
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { hermes, llama3, mistral } from "../chat/reply-formats.ts";
import { sameOutput } from "./code.ts";
import type { Grade } from "./grade.ts";
import { combine } from "./grade.ts";
import { gsm8kAnswer, hasTags, matchesFormat, mathAnswer, multipleChoice, tokenF1 } from "./index.ts";
import { readScore } from "./remote.ts";
import { countdown } from "./text.ts";

const many = 200_000;
const spaces = " ".repeat(many);

test.each<[string, () => Grade]>([
  ["multipleChoice, blanks after the keyword", () => multipleChoice(`The answer${spaces}`, "A")],
  ["multipleChoice, blanks in a box", () => multipleChoice(`\\boxed{${spaces}}`, "A")],
  ["multipleChoice, blanks in a tag", () => multipleChoice(`<answer>A${spaces}`, "B")],
  ["gsm8kAnswer, zeros before a last digit", () => gsm8kAnswer(`0.${"0".repeat(many)}1`, "1")],
  ["mathAnswer, tags that are never closed", () => mathAnswer("<answer>".repeat(many / 8), "1")],
  ["mathAnswer, blanks after the keyword", () => mathAnswer(`answer is${spaces}`, "1")],
  ["hasTags, blanks", () => hasTags(`<a>${spaces}x</a>${spaces}<b>${spaces}</b>`, ["a", "b"])],
  ["tokenF1, many words on both sides", () => tokenF1("b a".repeat(many / 4), "c ".repeat(many / 4))],
  ["mathAnswer, formulas that are never closed", () => mathAnswer("\\(".repeat(many / 2), "1")],
  ["mathAnswer, words in a tag", () => mathAnswer(`<answer>${"answer".repeat(many / 6)}</answer>`, "1")],
  ["mathAnswer, many formulas", () => mathAnswer("$1$ or ".repeat(many / 7), "1")],
  ["mathAnswer, many statements", () => mathAnswer("answer is 4 or ".repeat(many / 15), "1")],
  ["mathAnswer, many boxes", () => mathAnswer("\\boxed{1} \\boxed{2} ".repeat(many / 20), "1")],
  ["gsm8kAnswer, many numbers", () => gsm8kAnswer("1 or ".repeat(many / 5), "1")],
  ["multipleChoice, many letters", () => multipleChoice("The answer is (A) or ".repeat(many / 20), "B")],
  ["multipleChoice, words after the keyword", () => multipleChoice("answer for a ".repeat(many / 13), "A")],
  ["countdown, a million brackets", () => countdown("(".repeat(1_000_000), { numbers: [1], target: 1 })],
])("linear time: %s", (_name, run) => {
  const start = performance.now();
  expect(run().correct).toBe(false);
  expect(performance.now() - start).toBeLessThan(2000);
});

test("linear time: sameOutput, digits before a letter", () => {
  const start = performance.now();
  expect(sameOutput(`${"9".repeat(many)}x`, "9")).toBe(false);
  expect(performance.now() - start).toBeLessThan(2000);
});

test("linear time: a judge's answer of many objects", () => {
  for (const piece of ["{", "{ ", '{"', '{"a', "}{"]) expect(readScore(piece.repeat(many), 0.5)).toBeNull();
  expect(readScore("{}".repeat(many), 0.5)).toBeNull();
  expect(readScore(`${"{}".repeat(many)}{"score": 1}`, 0.5)).toMatchObject({ reward: 1 });
});

test("a reply over a million characters gets 0 without being graded", () => {
  expect(mathAnswer(`${" ".repeat(1_000_000)}\\boxed{1}`, "1")).toMatchObject({
    reward: 0,
    explanation: expect.stringContaining("1000009 characters"),
  });
});

test("matchesFormat: a pattern that backtracks without end gives 0 and does not block this thread", async () => {
  const graded = matchesFormat(`${"a".repeat(60)}b`, /^(a+)+$/);
  let ticks = 0;
  const timer = setInterval(() => ticks++, 50);
  expect(await graded).toMatchObject({ reward: 0, explanation: "/^(a+)+$/ took longer than 5 s on this reply" });
  clearInterval(timer);
  expect(ticks).toBeGreaterThan(5);
  expect((await matchesFormat("aa", /^(a+)+$/)).reward).toBe(1);
});

test.each([
  ["hermes", hermes, `<tool_call>{"name": "add", "arguments": `, "</tool_call>"],
  ["llama3", llama3, `{"name": "add", "parameters": `, ""],
  ["mistral", mistral, `[TOOL_CALLS][{"name": "add", "arguments": `, "]"],
] as const)(
  "%s: a call nested too deeply to be serialized is malformed and does not crash",
  (_name, format, open, close) => {
    for (const depth of [101, 100_000]) {
      const nested = `${open}${'{"a":'.repeat(depth)}1${"}".repeat(depth)}}${close}`;
      expect(format.read(nested, [])).toMatchObject({
        content: nested,
        calls: [],
        problems: [{ kind: "malformed_tool_call" }],
      });
    }
    expect(format.read(`${open}${'{"a":'.repeat(50)}1${"}".repeat(50)}}${close}`, []).calls).toHaveLength(1);
  },
);

describe("countdown", () => {
  const numbers = fc.uniqueArray(fc.integer({ min: 1, max: 99 }), { minLength: 2, maxLength: 2 });
  test.each(["8*.5", "8*0.5", ".5*8", "8/.5", "08*.5"])("%s does not use 5 and 8", (expression) => {
    for (const target of [4, 16]) {
      expect(countdown(`<answer>${expression}</answer>`, { numbers: [5, 8], target }).reward).toBe(0);
    }
  });
  test("a leading decimal point changes the number", () => {
    fc.assert(
      fc.property(numbers, ([left, right]) => {
        const game = { numbers: [left!, right!], target: left! * right! };
        expect(countdown(`<answer>${left}*${right}</answer>`, game).reward).toBe(1);
        expect(countdown(`<answer>${left}*.${right}</answer>`, { ...game, target: 1 }).reward).toBe(0);
        expect(countdown(`<answer>${left}*.${right}</answer>`, game).reward).toBe(0);
      }),
      { seed: 1 },
    );
  });
  test("numbers are compared exactly", () => {
    const game = { numbers: [2 ** 53, 1], target: 2 ** 53 };
    expect(countdown("<answer>9007199254740993*1</answer>", game).reward).toBe(0);
  });
});

describe("combine", () => {
  test.each<[unknown, string]>([
    [Number.NaN, "NaN"],
    [Number.POSITIVE_INFINITY, "Infinity"],
    [true, "a value of type boolean"],
    ["1", "a value of type string"],
    [undefined, "a value of type undefined"],
    [() => 1, "a value of type function"],
    [{ reward: true }, "a value of type boolean"],
    [{ reward: 5n }, "a value of type bigint"],
  ])("a part that returns %s fails with its name", async (given, shown) => {
    const reward = combine({ first: { weight: 1, reward: () => given as number } });
    await expect(reward({}, {} as never, {} as never)).rejects.toThrow(`the reward "first" returned ${shown}`);
  });
});
