/** Every grader on random replies: it never throws, grades within its range, and takes time in proportion to the reply. */
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { deriveSeed, uniforms } from "../base/values.ts";
import { parseReply } from "../chat/chat.ts";
import type { ReplyFormat } from "../chat/reply-format.ts";
import { formats } from "../chat/reply-formats.ts";
import { fuzzCases, fuzzTimeout } from "../fuzz-time.fixture.ts";
import { codeBlock, sameOutput } from "./code.ts";
import { randomExpression, randomReply } from "./fuzz-replies.fixture.ts";
import type { Grade } from "./grade.ts";
import * as graders from "./index.ts";
import { readScore } from "./remote.ts";
import { matchesFormatOnThisThread, matchesSchemaOnThisThread } from "./text.ts";

const list = { anyOf: [{ type: "array", items: { $ref: "#" } }, { type: ["number", "null"] }] };

/** Graders on `reply`; `other` is another reply, where a grader compares two. */
const grades: Record<string, (reply: string, other: string) => Grade> = {
  exactMatch: (reply, other) => graders.exactMatch(reply, other, { ignoreCase: true }),
  firstInteger: (reply) => graders.firstInteger(reply, 7),
  integersInOrder: (reply) => graders.integersInOrder(reply, [7, 1, 12]),
  gsm8kAnswer: (reply) => graders.gsm8kAnswer(reply, "#### 7"),
  mathAnswer: (reply) => graders.mathAnswer(reply, ["7", "\\frac{1}{2}", "x + \\sqrt{2}", "(1, 2]", "1, 2, x"]),
  "mathAnswer, boxed": (reply, other) =>
    graders.mathAnswer(`\\boxed{${reply}}`, `7${other.replaceAll("box", "")}`, { boxed: true }),
  multipleChoice: (reply) => graders.multipleChoice(reply, "B", 4),
  tokenF1: (reply, other) => graders.tokenF1(reply, ["word", `word ${other}`]),
  hasTags: (reply) => graders.hasTags(reply, ["a", "b"]),
  countdown: (reply) => graders.countdown(reply, { numbers: [1, 7, 12], target: 7 }),
  matchesFormat: (reply) => matchesFormatOnThisThread(reply, /^<answer>[^<]*<\/answer>$/),
  matchesSchema: (reply) => matchesSchemaOnThisThread(reply, JSON.stringify(list)),
};

/** Readers of replies, which must not throw either. */
const readers: Record<string, (reply: string, other: string) => unknown> = {
  mathEquivalent: (reply, other) => {
    const [left, right] = [reply.slice(0, 2000), other.slice(0, 2000)];
    const equal = graders.mathEquivalent(left, right);
    if (equal !== graders.mathEquivalent(right, left)) throw new Error(`the order counts: ${left} and ${right}`);
  },
  codeBlock,
  sameOutput,
  judge: (reply) => readScore(reply, 0.5),
  ...Object.fromEntries(
    Object.entries<ReplyFormat>(formats).map(([name, format]) => [
      name,
      (reply: string) => {
        const context = { thinking: reply.length % 2 === 0, tools: [{ name: "add" }], callId: String };
        return JSON.stringify(parseReply(reply, format, context));
      },
    ]),
  ),
};

test("graders never throw, leave their range or take long", { timeout: fuzzTimeout }, async () => {
  const slowest = { name: "", milliseconds: 0, characters: 0 };
  let cases = 0;
  let calls = 0;
  for (const index of fuzzCases(600, 0.7)) {
    const random = uniforms(deriveSeed(2026, "graders", index));
    const [reply, other] = [randomReply(random), randomReply(random)];
    const characters = reply.length + other.length;
    for (const [name, call] of [...Object.entries(grades), ...Object.entries(readers)]) {
      const start = process.cpuUsage();
      const result = attempt(() => call(reply, other), `${name}, case ${index}`);
      const { user, system } = process.cpuUsage(start);
      const milliseconds = (user + system) / 1000;
      if (milliseconds > slowest.milliseconds) Object.assign(slowest, { name, milliseconds, characters });
      if (milliseconds > 1500 + characters / 100) {
        expect.unreachable(`${name}, case ${index}: ${milliseconds} ms for ${characters} characters`);
      }
      if (Object.hasOwn(grades, name)) checkGrade(result, `${name}, case ${index}`);
      calls++;
    }
    if (index % 50 === 0) {
      checkGrade(await graders.matchesFormat(reply, /^(?:[^<]|<(?!\/?b>))*$/), `matchesFormat, case ${index}`);
      checkGrade(await graders.matchesSchema(reply, list), `matchesSchema, case ${index}`);
    }
    cases++;
  }
  const { name, milliseconds, characters } = slowest;
  console.log(`${cases} replies, ${calls} calls; slowest: ${name}, ${milliseconds} ms for ${characters} characters`);
});

function attempt(call: () => unknown, where: string): unknown {
  try {
    return call();
  } catch (error) {
    throw new Error(`${where} threw ${error}`, { cause: error });
  }
}

function checkGrade(graded: unknown, where: string): void {
  const { reward, correct, explanation } = graded as Grade;
  const sound =
    reward >= 0 && reward <= 1 && typeof correct === "boolean" && typeof explanation === "string" && explanation !== "";
  if (!sound || explanation.length > 2100 || (correct && reward !== 1)) {
    expect.unreachable(`${where}: ${JSON.stringify(graded).slice(0, 500)}`);
  }
}

test("an expression equals its value and no other value", { timeout: fuzzTimeout }, async () => {
  let cases = 0;
  for (const index of fuzzCases(1000, 0.3)) {
    const random = uniforms(deriveSeed(2026, "expressions", index));
    const [one, two] = [randomExpression(random), randomExpression(random)];
    const value = `\\frac{${one.top}}{${one.bottom}}`;
    const wrong = `\\frac{${one.top + 1n}}{${one.bottom}}`;
    const same = one.top * two.bottom === two.top * one.bottom;
    expect(graders.mathEquivalent(one.text, value), `case ${index}: ${one.text} is ${value}`).toBe(true);
    expect(graders.mathEquivalent(one.text, wrong), `case ${index}: ${one.text} is not ${wrong}`).toBe(false);
    expect(graders.mathEquivalent(one.text, two.text), `case ${index}: ${one.text}, ${two.text}`).toBe(same);
    // Yields, because the test runner expects a response during a long test.
    if (index % 1000 === 0) await setImmediate();
    cases++;
  }
  console.log(`${cases} pairs of expressions`);
});
