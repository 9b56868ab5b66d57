import { describe, expect, test } from "vitest";
import { codeBlock, sameOutput } from "./code.ts";
import { hasTags, matchesSchema, multipleChoice, tokenF1 } from "./text.ts";

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
