import { describe, expect, test } from "vitest";
import { z } from "zod";
import { codeBlock, sameOutput } from "./code.ts";
import {
  countdown,
  gsm8kAnswer,
  hasTags,
  matchesSchema,
  matchesSchemaOnThisThread,
  multipleChoice,
  tokenF1,
} from "./text.ts";

describe("multipleChoice", () => {
  test.each<[string, string, number]>([
    ["B", "B", 1],
    [" (b). ", "B", 1],
    ["\\boxed{C}", "C", 1],
    ["\\boxed{\\text{C}}", "C", 1],
    ["<answer>D) Bern</answer>", "D", 1],
    ["It is hot. The answer is (A).", "A", 1],
    ["Answer: **C**", "C", 1],
    ["Answer:   \n\n  **C**", "C", 1],
    ["<answer>Apple</answer>", "A", 0],
    ["At first the answer is A, but no, the answer is B", "B", 1],
    ["A. no\nB. yes", "A", 0],
    ["B) because it flows north", "B", 1],
    ["I think a choice is hard", "A", 0],
    ["<think>answer is A</think> answer is B", "B", 1],
    ["The answer is E", "E", 0],
    ["no idea", "A", 0],
  ])("%j, expected %s: %d", (reply, expected, reward) => {
    const choices = expected === "E" ? 5 : 4;
    if (reply === "The answer is E") expect(multipleChoice(reply, "D", 4).reward).toBe(0);
    else expect(multipleChoice(reply, expected, choices)).toMatchObject({ reward });
  });
  /** L is chosen, O is another letter. */
  const statesL = (L: string, O: string) => [
    `${L}`,
    `(${L})`,
    `**${L}**`,
    `${L}.`,
    `Answer: ${L}`,
    `**Answer:** ${L}`,
    `**Answer: ${L}**`,
    `**Answer**: **${L}**`,
    `The answer is ${L}.`,
    `The answer is (${L}).`,
    `The correct answer is **${L}**.`,
    `The correct answer is option ${L}.`,
    `The correct option is ${L}.`,
    `So the answer must be ${L}.`,
    `The answer is $\\boxed{${L}}$.`,
    `\\boxed{\\text{${L}}}`,
    `\\boxed{\\text{(${L})}}`,
    `\\boxed{\\textbf{(${L}) }12}`,
    `\\boxed{${L}) Paris}`,
    `<answer>${L}</answer>`,
    `<answer>(${L})</answer>`,
    `<answer>${L}. Paris</answer>`,
    `<answer>The answer is ${L}</answer>`,
    `<answer>Option ${L}</answer>`,
    `I think it is ${L}.`,
    `I choose ${L}.`,
    `I pick (${L}).`,
    `I'd go with ${L}.`,
    `I would say ${L}.`,
    `My choice is ${L}.`,
    `${L} is the correct answer.`,
    `(${L}) is correct.`,
    `Option ${L} is correct.`,
    `Therefore, ${L} is the best choice.`,
    `It's ${L}.`,
    `It must be ${L}, since water expands.`,
    `${L}) because it flows north`,
    `${L}: Paris`,
    `The answer is ${L} because I computed it.`,
    `The answer is ${L}. Option ${O} is wrong because copper conducts.`,
    `Answer: ${L}\n\nOption ${O} confuses mass with weight.`,
    `Answer: ${O}? No, wait.\nAnswer: ${L}`,
    `The answer is ${L}, not ${O}.`,
    `The answer is not ${O}. The answer is ${L}.`,
    `At first the answer is ${O}, but no, the answer is ${L}`,
    `Option ${O} is wrong.\n\nTherefore, the answer is ${L}.`,
    `(${O}) is wrong. So I pick (${L}).`,
    `### Answer\n${L}`,
    `**Final Answer**\n\n${L}`,
    `Final answer: ${L}) Paris`,
    `the answer is: ${L}`,
    `The answer is:\n\n**${L}**`,
    `The answer is therefore ${L}.`,
    `The answer is clearly (${L}), Paris.`,
    `Ans: ${L}`,
    `The final answer is $\\text{${L}}$.`,
    `Since x > 2, it can't be ${O}, so the answer is ${L}`,
    `The best answer is ${L}: Paris.`,
    `Step 1: think.\n\n${L}`,
    `The answer is "${L}".`,
    `My answer: ${L}.`,
    `Correct answer: ${L}`,
    `The answer is ${L}, and ${O} is wrong.`,
    `answer: ${L.toLowerCase()}`,
    `<think>answer is ${O}</think> The answer is ${L}`,
    `I am confident that the answer is ${L}!`,
    `The answer is \\(${L}\\).`,
    `Answer: [${L}]`,
    `I believe the answer is ${L}.`,
    `Thus ${L} is right.`,
    `So, the answer is ${L}) 42.`,
    `The answer is ${L} - Paris.`,
  ];
  test.each([
    ["A", "B"],
    ["B", "C"],
    ["C", "A"],
    ["D", "A"],
  ])("%s in the styles of models", (L, O) => {
    const refused = statesL(L, O).filter((reply) => multipleChoice(reply, L, 4).reward !== 1);
    expect(refused).toEqual([]);
    const paid = statesL(L, O).filter((reply) => multipleChoice(reply, O, 4).reward !== 0);
    expect(paid).toEqual([]);
  });
  test.each([
    "The answer is A or B.",
    "Either A or B.",
    "A or B",
    "A, B",
    "Answer: A/B",
    "The answer is A and B.",
    "The answer is A. The answer is B.",
    "\\boxed{A} \\boxed{B}",
    "\\boxed{A or B}",
    "\\boxed{A, B}",
    "<answer>A or B</answer>",
    "<answer>A, B, C</answer>",
    "I think it is A or maybe B.",
    "The answer is A. Or B.",
    "The answer is a matter of taste.",
    "The answer is a bit surprising.",
    "A matter of taste.",
    "I think a choice is hard.",
    "\\boxed{E = mc^2}",
    "Apple",
    "Option A is wrong.",
    "It is not A.",
    "The answer is not B.",
    "(A) (B) (C) (D)",
    "A. no\nB. yes\nC. maybe",
    "\\boxed{a + b}",
    "\\boxed{12}",
    "The answer is (A) or (B)",
    "Answer: A or (B)",
    "Answer: A (or B)",
    "ABCD",
    "Answer: ABCD",
    "Answer: A B C D",
    "The answer is A, B, C, or D.",
    "It is a pity.",
    "<answer>A</answer><answer>B</answer>",
    "A\nB",
    "It is A. It is B.",
    "I choose A. I choose B.",
    "B is correct. C is correct.",
    "The answer is A; the answer is B",
    "Both A and B are correct.",
    "A is wrong",
    "Is the answer A?",
  ])("%j is not a choice", (reply) => {
    for (const expected of "ABCD") expect(multipleChoice(reply, expected, 4)).toMatchObject({ reward: 0 });
  });
  test("letters that are pronouns or formulas", () => {
    expect(multipleChoice("The answer is C because I computed the integral.", "C", 10).reward).toBe(1);
    expect(multipleChoice("The answer is I.", "I", 10).reward).toBe(1);
    expect(multipleChoice("Since \\boxed{E = mc^2} holds, mass is lost.\n\nAnswer: D", "D", 5).reward).toBe(1);
    expect(multipleChoice("I choose (C). The answer is a bit surprising.", "C").reward).toBe(1);
  });
  test("an expected answer that is not a letter is a mistake in the data", () => {
    expect(() => multipleChoice("A", "Paris")).toThrow("one letter of");
    expect(() => multipleChoice("A", "E", 4)).toThrow("one letter of ABCD");
  });
});

test.each<[string, string | string[], number]>([
  ["the Paris!", "paris", 1],
  ["the city of Paris", "Paris", 0.5],
  ["Rome", ["Bern", "Rome, Italy"], 2 / 3],
  ["x", "y", 0],
  ["a a b", "a b", 1],
  ["dog dog", "dog", 2 / 3],
])("tokenF1 of %j to %j is %d", (reply, expected, score) => {
  expect(tokenF1(reply, expected).reward).toBeCloseTo(score);
});

test.each<[string, string, number]>([
  ["#### 1/2", "1", 0],
  ["#### 1/2", "0.5", 1],
  ["#### 10^3", "10", 0],
  ["#### 10^3", "1000", 1],
  ["#### 5e3", "5", 0],
  ["#### 5e3", "5000", 1],
  ["#### 18 or 19", "18", 0],
  ["#### 18 or 19", "19", 0],
  ["#### 1 234", "1234", 1],
  ["#### 1 234", "1", 0],
  ["The answer is **42**.", "#### 42", 1],
  ["It is 18 or 19.", "19", 0],
  ["#### 3 * 4", "3", 0],
  ["#### 3*4 = 12", "12", 1],
  ["\\boxed{\\frac{1}{2}}", "2", 0],
  ["\\boxed{\\frac{1}{2}}", "0.5", 1],
  ["\\boxed{x = 42}", "42", 1],
  ["\\boxed{18 \\text{ or } 19}", "19", 0],
  ["\\boxed{18} or \\boxed{19}", "19", 0],
  ["\\boxed{10^3}", "3", 0],
  ["\\boxed{1,234}", "1234", 1],
  ["\\boxed{42 \\text{ apples}}", "42", 1],
  ["\\boxed{\\$42}", "42", 1],
  ["\\boxed{42\\%}", "42", 1],
  ["\\boxed{6 \\cdot 7 = 42}", "42", 1],
  ["The answer is 42 because 6*7 is 42 and 5 is odd.", "42", 1],
  ["The answer is 10^3.", "1000", 1],
  ["The answer is 1/2.", "2", 0],
  ["between 18 and 19", "19", 0],
  ["#### 18-19", "18", 0],
  ["#### 18, 19", "18", 0],
  ["#### $42", "42", 1],
  ["#### 42 dollars", "42", 1],
  ["#### 42.", "42", 1],
  ["#### 42.00", "42", 1],
  ["#### -42", "42", 0],
  ["#### **42**", "42", 1],
  ["#### \\boxed{42}", "42", 1],
  ["She has 12 + 30 = 42 apples", "42", 1],
  ["Total: $1,234.50", "1234.5", 1],
  ["It is not 42", "42", 0],
  ["#### 5 x 10^3", "5", 0],
  ["#### 5 \\times 10^3", "5000", 1],
  ["#### 2.5", "2", 0],
  ["#### 1\u202f234", "1234", 1],
  ["#### 12 hours 30 minutes", "12", 1],
  ["#### 4\n#### 5", "5", 1],
  ["The answer is 41. So 42", "42", 0],
  ["#### √2", "2", 0],
  ["#### 3½", "3", 0],
  ["#### 42 (or 43)", "42", 0],
  ["#### 5!", "5", 0],
  ["#### 2^10", "1024", 1],
  ["#### 50%", "50", 1],
  ["#### x=5", "5", 1],
  ["#### 5k", "5", 0],
  ["#### 5 million", "5", 0],
  ["#### 5 dozen", "5", 0],
])("gsm8kAnswer(%j, %j) is %d", (reply, reference, reward) => {
  expect(gsm8kAnswer(reply, reference)).toMatchObject({ reward });
});

test.each<[string, number[], number, number]>([
  ["<answer>(8-5)4</answer>", [4, 5, 8], 12, 1],
  ["<answer>4(8-5)</answer>", [4, 5, 8], 12, 1],
  ["<answer>(1+2)(3+4)</answer>", [1, 2, 3, 4], 21, 1],
  ["<answer>2 3</answer>", [2, 3], 6, 0],
  ["<answer>2**3</answer>", [2, 3], 8, 0],
  ["<answer>(8 - 5) × 4 = 12</answer>", [4, 5, 8], 12, 1],
  ["<answer>12 = (8-5)*4</answer>", [4, 5, 8], 12, 1],
  ["$$\\frac{8}{2}+3$$", [8, 2, 3], 7, 1],
  ["\\boxed{(8-5)\\times 4}", [4, 5, 8], 12, 1],
  ["<answer>(8 - 5)* 4</answer>", [4, 5, 8], 12, 1],
  ["<answer>23</answer>", [2, 3], 23, 0],
  ["<answer>2(3</answer>", [2, 3], 6, 0],
  ["<answer>(2)3</answer>", [2, 3], 6, 1],
  ["<answer>6/2(3)</answer>", [6, 2, 3], 9, 1],
  ["<answer>6/2(3)</answer>", [6, 2, 3], 1, 0],
  ["The answer is (8 - 5) * 4.", [4, 5, 8], 12, 1],
  ["<answer>12</answer>", [4, 5, 8], 12, 0],
  ["<answer>3^2</answer>", [3, 2], 9, 0],
  ["<answer>(8-5)*4 or 5</answer>", [4, 5, 8], 12, 0],
  ["<answer>4 x (8 - 5)</answer>", [4, 5, 8], 12, 1],
  ["<answer>10 + 2 - 3*4</answer>", [10, 2, 3, 4], 0, 1],
  ["<answer>(1+2)\\cdot 3</answer>", [1, 2, 3], 9, 1],
  ["<answer>2.(3)</answer>", [2, 3], 6, 0],
  ["**Answer:** `(8 - 5) * 4`", [4, 5, 8], 12, 1],
  ["Answer: (8-5)*4 = 3*4 = 12", [4, 5, 8], 12, 1],
])("countdown: %s with %j for %d is %d", (reply, numbers, target, reward) => {
  expect(countdown(reply, { numbers, target })).toMatchObject({ reward });
});

test.each([
  ["cafe\u0301", "café"],
  ["ＡＢＣ", "abc"],
  ["straße", "STRASSE"],
  ["ﬁne", "fine"],
  ["zero\u200bwidth", "zerowidth"],
  ["हिन्दी", "हिन्दी"],
  ["ΟΔΟΣ", "οδος"],
])("tokenF1: %s and %s are the same words", (reply, expected) => {
  expect(tokenF1(reply, expected).reward).toBe(1);
});

test.each<[string, number]>([
  ["<think>so</think>\n<answer>4</answer>", 1],
  ["<think>so</think> then <answer>4</answer>", 0.5],
  ["<answer>4</answer><think>so</think>", 0.5],
  ["<think></think><answer>4</answer>", 0.5],
  ["<think>so</think><answer>4", 0.25],
  ["<think>a</think><think>b</think><answer>4</answer>", 0.25],
  ["4", 0],
])("hasTags of %j is %d", (reply, reward) => {
  expect(hasTags(reply, ["think", "answer"])).toMatchObject({ reward, correct: reward === 1 });
});

describe("matchesSchema", () => {
  const schema = { type: "object", required: ["city"], properties: { city: { type: "string", minLength: 2 } } };
  test.each<[string, number, string]>([
    ['{"city": "Bern"}', 1, "is JSON that the schema allows"],
    ['```json\n{"city": "Bern"}\n```', 1, "is JSON"],
    ['{"city": 7}', 0, "/city must be string"],
    ["{}", 0, "it must have required property 'city'"],
    ["Bern", 0, "is not JSON"],
  ])("%j: %d", async (reply, reward, why) => {
    expect(await matchesSchema(reply, schema)).toMatchObject({ reward, explanation: expect.stringContaining(why) });
  });
  test("schemas of zod, in every draft", async () => {
    const shape = z.object({
      city: z.string(),
      days: z.int().min(1),
      at: z.tuple([z.number(), z.number()]).optional(),
    });
    for (const target of ["draft-2020-12", "draft-7"] as const) {
      const written = z.toJSONSchema(shape, { target });
      expect((await matchesSchema('{"city": "Bern", "days": 2, "at": [1, 2]}', written)).reward).toBe(1);
      expect((await matchesSchema('{"city": "Bern", "days": 0}', written)).reward).toBe(0);
      expect((await matchesSchema('{"city": "Bern", "days": 2, "at": [1, "2"]}', written)).reward).toBe(0);
    }
  });
  test.each([
    ["date", "2026-02-28", "2026-02-29"],
    ["date-time", "2026-11-28T22:00:00Z", "2026-11-28 25:00:00Z"],
    ["time", "22:00:00Z", "22:00"],
    ["email", "a.b@example.org", "a.b@example"],
    ["ipv4", "127.0.0.1", "127.0.0.256"],
    ["ipv6", "::1", ":::1"],
    ["uri", "https://example.org/a?b=1", "example.org"],
    ["uuid", "123e4567-e89b-42d3-a456-426614174000", "123e4567"],
    ["hostname", "example.org", "-example.org"],
    ["duration", "P1DT2H", "1 day"],
    ["regex", "a+", "a("],
  ])("format %s", async (format, right, wrong) => {
    const formatted = { type: "string", format };
    expect((await matchesSchema(JSON.stringify(right), formatted)).reward).toBe(1);
    expect((await matchesSchema(JSON.stringify(wrong), formatted)).reward).toBe(0);
  });
  test("thousands of schemas are not kept", () => {
    const grade = (most: number) => matchesSchemaOnThisThread("7", JSON.stringify({ type: "number", maximum: most }));
    for (let most = 0; most < 300; most++) expect(grade(most).reward).toBe(Number(most >= 7));
  });
  test("a property that every object inherits is missing unless the reply has it", async () => {
    const required = { type: "object", required: ["toString"] };
    expect((await matchesSchema("{}", required)).reward).toBe(0);
    expect((await matchesSchema('{"toString": 1}', required)).reward).toBe(1);
  });
  test("an invalid schema is a mistake of the experiment", async () => {
    await expect(matchesSchema("1", { type: "nothing" })).rejects.toThrow("schema is invalid");
  });
  test("a schema that recurses, or that tries every alternative twice, gives 0", async () => {
    const list = { anyOf: [{ type: "array", items: { $ref: "#" }, minItems: 1 }, { type: "null" }] };
    const nested = `${"[".repeat(100_000)}${"]".repeat(100_000)}`;
    expect(await matchesSchema(nested, list)).toMatchObject({
      reward: 0,
      explanation: expect.stringContaining("stack"),
    });
  });
});

test.each<[string, string, boolean]>([
  ["1 2\n3 \n\n", "1 2\n3", true],
  ["0.50", ".5", true],
  ["1e3", "1000.0", true],
  ["12345678901234567890", "12345678901234567891", false],
  ["9007199254740993.0", "9007199254740992", false],
  ["9007199254740993.0", "9007199254740993", true],
  ["-0.0", "0", true],
  ["1000000007.5", "1000000007", false],
  ["9007199254740992.5", "9007199254740993", false],
  ["2.9999999999999996", "3", true],
  ["1000000007.5", "1000000007.2", true],
  ["1e400", "5.5", false],
  ["-1e400", "3", false],
  ["1e400", "1e400", true],
  ["1\n2", "1 2", false],
  ["yes", "Yes", false],
])("output %j and %j: %s", (left, right, same) => {
  expect(sameOutput(left, right)).toBe(same);
});

test.each<[string, string | undefined]>([
  ["a\n```python\nx = 1\n```\nb", "x = 1\n"],
  ["```\n1\n```\n```\n2\n```", "2\n"],
  ["```py\n1\n```\n```py\n2", "1\n"],
  ["  ```js\n  1\n  ```", "1\n"],
  ["```\n```", ""],
  ["``` not closed", undefined],
])("the code in %j is %j", (reply, code) => {
  expect(codeBlock(reply)?.code).toBe(code);
});
