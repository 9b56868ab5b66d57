/** The documented rules, case by case. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import type { ScriptLine } from "../../testing/index.ts";
import { check, fuzzy, grade, multi } from "./grade.fixture.ts";
import { similarity } from "./graders.ts";
import type { RftGrader } from "./schema.ts";

const call = { toolCalls: [{ name: "book", arguments: { city: "Bern" } }] };
const tools = [
  {
    type: "function",
    function: { name: "book", parameters: { type: "object", properties: { city: { type: "string" } } } },
  },
];

// Grader, item, reply, score.
const cases: [RftGrader, object, ScriptLine, number][] = [
  [check("eq"), { answer: "4" }, "4", 1],
  [check("eq"), { answer: "4" }, "4 ", 0],
  [check("eq"), { answer: 4 }, "4", 1],
  [check("eq"), { answer: true }, "true", 1],
  [check("eq"), { answer: "Bern" }, "bern", 0],
  [check("ne"), { answer: "4" }, "5", 1],
  [check("ne"), { answer: "4" }, "4", 0],
  [check("neq"), { answer: "4" }, "5", 1],
  [check("like"), { answer: "Bern" }, "It is Bern.", 1],
  [check("like"), { answer: "Bern" }, "It is bern.", 0],
  [check("ilike"), { answer: "Bern" }, "It is BERN.", 1],
  [check("ilike"), { answer: "Bern" }, "It is Basel.", 0],
  [check("like", "{{item.text}}", "{{sample.output_text}}"), { text: "a long text" }, "long", 1],
  [check("eq", "{{ sample.output_json.city }}"), { answer: "Bern" }, '{"city": "Bern"}', 1],
  [check("eq", "{{ sample.output_json.city }}"), { answer: "Bern" }, "Bern", 0],
  [check("eq", "{{ sample.output_json.list[1] }}"), { answer: "b" }, '{"list": ["a", "b"]}', 1],
  [check("eq", "{{ sample.output_json.n }}"), { answer: "1.5" }, '{"n": 1.5}', 1],
  [check("eq", "{{ sample.output_json.missing }}", ""), {}, "{}", 1],
  [check("eq", "{{ sample.output_tools[0].function.name }}"), { answer: "book", tools }, call, 1],
  [check("eq", "{{ sample.output_tools[0].function.arguments }}", '{"city":"Bern"}'), { tools }, call, 1],
  [check("eq", "{{ sample.output_tools[0].function.name }}"), { answer: "book", tools }, "I book", 0],
  [check("eq", "{{ sample.choices[0].message.content }}"), { answer: "hi" }, "hi", 1],
  [check("eq", "{{ sample.output_text }}", "{{ item.answers[0].text }}"), { answers: [{ text: "x" }] }, "x", 1],
  [check("eq", "{{ sample.output_text }}", "{{ item['the answer'] }}"), { "the answer": "x" }, "x", 1],
  [check("eq", "<{{ sample.output_text }}>", "<{{ item.answer }}>"), { answer: "x" }, "x", 1],
  [check("eq", "{{ sample.output_text }}", "{{ item.list }}"), { list: [1, "a"] }, '[1,"a"]', 1],
  [check("eq"), { answer: "{{ sample.output_text }}" }, "{{ sample.output_text }}", 1],
  [fuzzy, { answer: "Paris" }, "Paris", 1],
  [fuzzy, { answer: "hello there" }, "hello world", 7 / 11],
  [fuzzy, { answer: "" }, "", 1],
  [{ ...fuzzy, evaluation_metric: "rouge_1" }, { answer: "the cat is on the mat" }, "The cat sat on the mat.", 10 / 12],
  [{ ...fuzzy, evaluation_metric: "rouge_2" }, { answer: "a b c" }, "a b d", 0.5],
  [{ ...fuzzy, evaluation_metric: "rouge_l" }, { answer: "a b c d" }, "a x c d", 0.75],
  [{ ...fuzzy, evaluation_metric: "rouge_5" }, { answer: "a b c d" }, "a b c d", 0],
  [multi("0.8 * exact + 0.2 * close"), { answer: "ab" }, "ac", 0.1],
  [multi("exact + close / 2"), { answer: "ab" }, "ab", 1.5],
  [multi("min(exact, close) + max(exact, close)"), { answer: "ab" }, "ac", 0.5],
  [multi("-exact ^ 2 + 3"), { answer: "ab" }, "ab", 2],
  [multi("floor(close * 10) / 10 + ceil(0.1) - abs(-1)"), { answer: "ab" }, "ac", 0.5],
  [multi("sqrt(4) * exp(0) + log(1)"), { answer: "a" }, "a", 2],
  [
    {
      type: "multi",
      graders: [
        { ...check("eq"), name: "one" },
        { ...fuzzy, name: "two" },
      ],
      calculate_output: "one + two",
    },
    { answer: "a" },
    "a",
    2,
  ],
  // Names and formulas.
  [multi("((exact + (close * 2)) / (1 + 1))"), { answer: "ab" }, "ac", 0.5],
  [multi("2 ^ 3 ^ 2 + exact"), { answer: "a" }, "b", 512],
  [multi("2 ^ -1 * exact"), { answer: "a" }, "a", 0.5],
  [multi("1 - -exact"), { answer: "a" }, "a", 2],
  [multi("8 / 4 / 2 - 3 - exact"), { answer: "a" }, "a", -3],
  [multi("1e-1 + .5e1 + 2. * exact"), { answer: "a" }, "a", 7.1],
  [multi("min(exact, close, 0.25, max(-1, 3))"), { answer: "ab" }, "ab", 0.25],
  [multi("max(min(exact, close), floor(close + 0.9))"), { answer: "ab" }, "ac", 1],
  [multi("min(\n exact ,\tclose )"), { answer: "ab" }, "ac", 0],
  [multi("floor(-0.5 * close)"), { answer: "ab" }, "ac", -1],
  [multi("log(exp(exact)) + abs(close - 1) ^ 0.5"), { answer: "abcd" }, "abcd", 1],
  [{ ...multi("min(min, 0.5)"), graders: { min: check("eq") } }, { answer: "a" }, "a", 0.5],
  [{ ...multi("größe_1 * 2"), graders: { größe_1: check("eq") } }, { answer: "a" }, "a", 2],
  [{ ...multi("grader_1 + grader_2"), graders: [check("eq"), check("like")] }, { answer: "a" }, "ab", 1],
  [{ ...multi("constructor"), graders: { constructor: check("eq") } }, { answer: "a" }, "a", 1],
  // Texts.
  [check("like", "{{sample.output_text}}", ""), {}, "anything", 1],
  [check("eq", "", "{{sample.output_text}}"), {}, "", 1],
  [check("ilike"), { answer: "straße" }, "STRASSE", 0],
  [check("ilike"), { answer: "ΟΔΟΣ" }, "οδος", 1],
  [check("eq"), { answer: "caf\u00e9" }, "cafe\u0301", 0],
  [check("like"), { answer: ".*" }, "abc", 0],
  [check("like"), { answer: "%" }, "abc", 0],
  [check("ne"), { answer: "a" }, "a\n", 1],
  [fuzzy, { answer: "🙂🙃" }, "🙂🙂", 0.5],
  [fuzzy, { answer: "abc" }, "", 0],
  [{ ...fuzzy, evaluation_metric: "rouge_1" }, { answer: "日本 語" }, "日本 語", 0],
  [{ ...fuzzy, evaluation_metric: "rouge_1" }, { answer: "a a a b" }, "a b b", 4 / 7],
  [{ ...fuzzy, evaluation_metric: "rouge_3" }, { answer: "a b c d" }, "x a b c", 0.5],
  [{ ...fuzzy, evaluation_metric: "rouge_l" }, { answer: "a b c" }, "c b a", 1 / 3],
  // Templates.
  [check("eq", "{{item['a.b']['c[0]'].d}}", "1"), { "a.b": { "c[0]": { d: 1 } } }, "", 1],
  [check("eq", "{{item.rows[1].cells[0]}}", "3"), { rows: [{}, { cells: [3] }] }, "", 1],
  [check("eq", "{{item.rows.1}}", "b"), { rows: ["a", "b"] }, "", 1],
  [check("eq", "{{ item.none }}", "null"), { none: null }, "", 1],
  [check("eq", "{{item.empty}}{{item.object}}", '[]{"a":{"b":[]}}'), { empty: [], object: { a: { b: [] } } }, "", 1],
  [check("eq", '{"x":{{item.x}}}', '{"x":7}'), { x: 7 }, "", 1],
  [check("eq", "}} {{item.x}} }} { {", "}} 7 }} { {"), { x: 7 }, "", 1],
  [check("eq", "{{sample.output_json[2][0]}}", "z"), {}, '[1, 2, ["z"]]', 1],
  [check("eq", "{{sample.output_json}}", '{"a":1}'), {}, ' {"a" : 1}\n', 1],
  [check("eq", "{{sample.output_json.a.b.c}}", ""), {}, '{"a": null}', 1],
  [check("eq", "{{sample.output_json.constructor}}", ""), {}, "{}", 1],
  [check("eq", "{{sample.output_json.__proto__}}", ""), {}, "{}", 1],
  [check("eq", "{{sample.output_tools[3].function.name}}", ""), { tools }, call, 1],
  [check("eq", "{{sample.output_tools}}", "[]"), {}, "text", 1],
  [check("eq", "{{sample.choices[0].message.tool_calls[0].type}}", "function"), { tools }, call, 1],
  [check("eq", "{{ item.question-id }}", "q"), { "question-id": "q" }, "", 1],
  [check("eq", "{{sample.output_text}}", "$& $1 {{item.a}}"), { a: "$&" }, "$& $1 $&", 1],
];

describe("graders", () => {
  test.each(cases)("%j of %j and %j is %d", async (grader, item, reply, score) => {
    const found = await grade(grader, item, reply);
    expect(found.failure).toBeUndefined();
    expect(found.reward).toBeCloseTo(score, 12);
  });

  test("similarities are those of rapidfuzz 3.14.6 and rouge-score 0.1.2", () => {
    const recorded = JSON.parse(readFileSync(new URL("similarity.fixture.json", import.meta.url), "utf8")) as Record<
      string,
      string | number
    >[];
    expect(recorded.length).toBeGreaterThanOrEqual(70);
    for (const { input, reference, ...values } of recorded) {
      for (const [metric, value] of Object.entries(values)) {
        const found = similarity(metric as "fuzzy_match", String(input), String(reference));
        expect([metric, input, reference, found]).toEqual([
          metric,
          input,
          reference,
          expect.closeTo(value as number, 12),
        ]);
      }
    }
  });

  test("long replies are compared, and the longest get 0", async () => {
    const long = "ab ".repeat(20_000);
    expect((await grade(fuzzy, { answer: "ab ".repeat(400) }, long)).reward).toBeCloseTo(2 / 51, 3);
    expect(await grade(fuzzy, { answer: "a" }, "a".repeat(200_001))).toMatchObject({ reward: 0 });
    expect(similarity("fuzzy_match", "a".repeat(3000), "a".repeat(2000))).toBeCloseTo(0.8, 12);
  });

  test("a reply that is nested too deeply has no output_json, and the run continues", async () => {
    const deep = "[".repeat(20_000) + "]".repeat(20_000);
    const asJson = check("eq", "{{sample.output_json}}");
    expect(await grade(asJson, { answer: "[]" }, deep)).toMatchObject({ reward: 0, failure: undefined });
    expect((await grade(asJson, { answer: "[]" }, "[]")).reward).toBe(1);
  });

  test("pass_threshold decides whether a reply is correct", async () => {
    expect(await grade({ ...fuzzy, pass_threshold: 0.9 }, { answer: "ab" }, "ab")).toMatchObject({ correct: true });
    expect(await grade({ ...fuzzy, pass_threshold: 0.9 }, { answer: "ab" }, "ac")).toMatchObject({
      correct: false,
      reward: 0.5,
    });
  });

  test("a formula that divides by 0 gives an unknown reward, and its parts are metrics", async () => {
    const found = await grade(multi("close / exact"), { answer: "ab" }, "ac");
    expect(found).toMatchObject({ reward: null, metrics: { "reward/exact": 0, "reward/close": 0.5 } });
  });

  test.each([
    ['{"a": 1}', 1],
    ["[1]", 0],
    ["4", 0],
    ['{"a": 1', 0],
  ])("json_object: %s gets %d", async (reply, reward) => {
    const found = await grade(check("ne", "{{sample.output_text}}", "x"), {}, reply, {
      responseFormat: { type: "json_object" },
    });
    expect(found.reward).toBe(reward);
  });

  test("a reply that response_format does not allow gets 0", async () => {
    const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
    const responseFormat = { type: "json_schema", json_schema: { name: "n", schema } };
    const grader = check("ne", "{{sample.output_text}}", "x");
    expect(await grade(grader, {}, '{"city": "Bern"}', { responseFormat })).toMatchObject({ reward: 1 });
    expect(await grade(grader, {}, '{"town": 1}', { responseFormat })).toMatchObject({
      reward: 0,
      explanation: expect.stringContaining("response_format"),
    });
  });
});
