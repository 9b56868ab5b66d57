// Slow: Python graders in sandboxes, and a dry run.

import { readFileSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage } from "node:http";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { runHone } from "../../apps/cli/hone.fixture.ts";
import { listen } from "../../base/http.ts";
import { fromRows } from "../../data/dataset.ts";
import { openSandbox } from "../../rewards/sandbox/sandbox.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { openaiRft } from "./experiment.ts";
import { check, fuzzy, grade, multi, user } from "./grade.fixture.ts";
import { importJob } from "./import-job.ts";
import type { RftGrader } from "./schema.ts";
import { parseFormula } from "./schema.ts";

describe("graders of servers and in Python", () => {
  const open: { close(): void }[] = [];
  afterAll(() => {
    for (const server of open) server.close();
  });
  async function serve(answer: (body: Record<string, unknown>, request: IncomingMessage) => unknown) {
    const bodies: Record<string, unknown>[] = [];
    const server = createServer(async (request, response) => {
      let text = "";
      for await (const piece of request) text += piece;
      bodies.push(JSON.parse(text));
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify(answer(bodies.at(-1)!, request)));
    });
    open.push(server);
    return { url: await listen(server), bodies };
  }
  const completion = (content: string) => ({ choices: [{ message: { role: "assistant", content } }] });

  const score = {
    type: "score_model",
    name: "s",
    model: "gpt",
    input: [
      { role: "developer", content: "Be strict." },
      { role: "user", content: [{ type: "input_text", text: "Is {{sample.output_text}} close to {{item.answer}}?" }] },
    ],
    range: [0, 10],
  } satisfies RftGrader;

  test.each([
    ['{"steps": [{"description": "d", "conclusion": "close"}], "result": 7}', 7],
    ['Well: {"steps": [], "result": "3.5"}', 3.5],
    ['{"result": 99}', 10],
    ['{"result": -1}', 0],
    ['{"result": "good"}', null],
    ['{"result": true}', null],
    ['{"result": " "}', null],
    ['{"result": null}', null],
    ['{"result": 1e999}', null],
    ['{"steps": [{"conclusion": 3}], "result": 4}', 4],
    ["", null],
    ["7", null],
  ])("score_model: the answer %s is %j", async (answer, reward) => {
    const { url, bodies } = await serve(() => completion(answer));
    const found = await grade(score, { answer: "b" }, "a", { models: { url: `${url}/v1`, model: "mine" } });
    expect(found.reward).toBe(reward);
    expect(bodies[0]).toMatchObject({ model: "mine", temperature: 1 });
    expect((bodies[0]!.messages as { content: string }[]).map(({ content }) => content)).toEqual([
      expect.stringContaining("a number from 0 to 10"),
      "Be strict.",
      "Is a close to b?",
    ]);
  });

  test.each([
    ["good", 1],
    ["bad", 0],
    ["other", null],
    ["Good", null],
    [["good"], null],
  ])("label_model: the label %s is %j", async (label, reward) => {
    const { url } = await serve(() => completion(JSON.stringify({ steps: [], result: label })));
    const grader: RftGrader = {
      type: "label_model",
      model: "gpt",
      input: user as never,
      labels: ["good", "bad"],
      passing_labels: ["good"],
    };
    expect((await grade(grader, {}, "a", { models: { url } })).reward).toBe(reward);
  });

  test("endpoint: the sample and the item are posted, and an answer without a score is unknown", async () => {
    const { url, bodies } = await serve((body) => ({
      score: (body.sample as { output_text: string }).output_text === "a" ? 0.5 : "x",
    }));
    expect(await grade({ type: "endpoint", url }, { answer: "b" }, "a")).toMatchObject({ reward: 0.5 });
    expect(bodies[0]).toMatchObject({
      sample: { output_text: "a" },
      item: { answer: "b" },
      trace_id: expect.any(String),
    });
    expect(await grade({ type: "endpoint", url }, {}, "z")).toMatchObject({
      reward: null,
      explanation: expect.stringContaining("instead of"),
    });
  });

  test.each([[{ score: "0.5" }], [{ score: true }], [{ score: null }], [[0.5]], [0.5], [null], [{}]])(
    "endpoint: the answer %j is unknown",
    async (answer) => {
      const { url } = await serve(() => answer);
      expect(await grade({ type: "endpoint", url }, {}, "a")).toMatchObject({ reward: null, failure: undefined });
    },
  );

  test("multi: the counts of two endpoints are added, and one that is unknown makes the whole unknown", async () => {
    const [good, bad] = [await serve(() => ({ score: 2 })), await serve(() => ({}))];
    const both = (one: string, other: string) => ({
      type: "multi" as const,
      graders: { one: { type: "endpoint" as const, url: one }, other: { type: "endpoint" as const, url: other } },
      calculate_output: "one - other",
    });
    const found = await grade(both(good.url, good.url), {}, "a");
    expect(found).toMatchObject({ reward: 0, metrics: { "reward/one": 2, "reward/other": 2, endpoint_retries: 0 } });
    expect(await grade(both(good.url, bad.url), {}, "a")).toMatchObject({ reward: null, metrics: { "reward/one": 2 } });
  });

  const source = (body: string): RftGrader => ({ type: "python", source: `def grade(sample, item):\n    ${body}` });
  test.each<[string, number | null]>([
    ["return 1.0 if sample['output_text'] == item['answer'] else 0.0", 1],
    ["print('noise'); return len(sample['output_tools']) + 0.25", 0.25],
    ["return {}['x']", null],
    ["return float('nan')", null],
    ["return None", null],
    ["import sys; sys.exit(0)", null],
    ["raise ValueError('no')", null],
    ["return True", 1],
    ["return '0.5'", 0.5],
    ["return -2", -2],
    ["return 10 ** 400", null],
    ["return [1]", null],
    ["return sample['output_json']['x']", null],
    ["return 1.0 if sample['choices'][0]['message']['content'] == 'a' else 0.0", 1],
    ["import math; return math.inf", null],
    ["import os; os._exit(3)", null],
    ["return grade(sample, item)", null],
  ])("python: %s is %j", async (body, reward) => {
    const sandbox = await openSandbox({ atLeast: "process" });
    const found = await grade(source(body), { answer: "a" }, "a", { sandbox });
    expect(found.failure).toBeUndefined();
    expect(found.reward).toBe(reward);
  });
});

test.each<[string, unknown, string]>([
  ["cosine", { ...fuzzy, evaluation_metric: "cosine" }, "cosine is not computed by Hone"],
  ["bleu", { ...fuzzy, evaluation_metric: "bleu" }, "bleu is not computed by Hone"],
  ["an unknown type", { type: "magic" }, "type"],
  ["an unknown field", { ...check("eq"), weight: 1 }, "weight"],
  ["an unknown namespace", check("eq", "{{ user.name }}"), "user.name"],
  ["output_audio", check("eq", "{{ sample.output_audio }}"), "sample.output_audio"],
  ["code in a template", check("eq", "{{ item.a | upper }}"), "is not a reference"],
  ["a model without an address", { type: "score_model", model: "m", input: user }, "there is no address to ask at"],
  ["a formula of an unknown grader", multi("exact + style"), 'found "style" at 9'],
  ["a formula that ends", multi("exact +"), "found its end"],
  ["a nested multi", { type: "multi", graders: { a: multi("exact") }, calculate_output: "a" }, "graders.a"],
  ["a nested multi in a list", { type: "multi", graders: [multi("exact")], calculate_output: "a" }, "graders.0"],
  ["a template that is not closed", check("eq", "{{ item.answer } x"), "{{ item.answer } x is not closed"],
  ["a negative index", check("eq", "{{ item.list[-1] }}"), "is not a reference"],
  ["the whole sample", check("eq", "{{ sample }}"), "sample in"],
  ["a namespace of the prototype", check("eq", "{{ __proto__.x }}"), "__proto__.x"],
  [
    "graders of the same name",
    {
      ...multi("a"),
      graders: [
        { ...fuzzy, name: "a" },
        { ...check("eq"), name: "a" },
      ],
    },
    'names of their own that start with a letter, not "a"',
  ],
  ["a number as a name", { ...multi("1 + 2"), graders: { 1: fuzzy, 2: fuzzy } }, 'not "1"'],
  ["an empty multi", { ...multi("1"), graders: {} }, "graders"],
  ["min of nothing", multi("min()"), 'found ")" at 5'],
  ["two values for abs", multi("abs(exact, close)"), "1 value for abs"],
  ["a power of Python", multi("exact ** 2"), 'found "**" at 7'],
  ["a comparison", multi("exact > 0.5"), 'found ">" at 7'],
  ["a value without an operator", multi("2 exact"), "expected an operator"],
  [
    "a passing label that is not a label",
    { type: "label_model", model: "m", input: user, labels: ["good"], passing_labels: ["Good"] },
    "passing_labels: one of them is not in labels",
  ],
  [
    "a range from high to low",
    { type: "score_model", model: "m", input: user, range: [1, 0] },
    "range: the first number is not below the second",
  ],
  ["rouge_6", { ...fuzzy, evaluation_metric: "rouge_6" }, "rouge_5"],
  ["a reference that is not text", { ...check("eq"), reference: 4 }, "reference"],
  ["an endpoint without an address", { type: "endpoint", url: "localhost" }, "url"],
  ["a wrong operation", { ...check("eq"), operation: "regex" }, "operation"],
])("%s is refused", (_name, grader, message) => {
  const train = fromRows("rows", [{ messages: user, answer: "a" }]);
  expect(() => openaiRft({ train, grader: grader as never })).toThrow(message);
});

test.each<[string, object, string]>([
  ["no messages", { answer: 1 }, "messages"],
  ["a last message of the assistant", { messages: [...user, { role: "assistant", content: "a" }] }, "not the user's"],
  [
    "a picture",
    { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] },
    "messages.0.content",
  ],
])("a row with %s is refused with its place", (_name, row, message) => {
  expect(() => openaiRft({ train: fromRows("rows", [row]), grader: check("eq") })).toThrow(message);
});

test("a row without the value that a grader reads is refused before a model is asked", () => {
  const input = [{ role: "user" as const, content: "{{ item.hint.text }}" }];
  const asking = { type: "label_model" as const, model: "m", input, labels: ["a"], passing_labels: ["a"] };
  const grader: RftGrader = { type: "multi", graders: { a: check("eq"), b: asking }, calculate_output: "a + b" };
  const load = (row: object) => () =>
    openaiRft({ train: fromRows("rows", [{ messages: user, ...row }]), grader, models: { url: "http://127.0.0.1" } });
  expect(load({ other: 1 })).toThrow("rows[0]: the item has no answer");
  expect(load({ answer: "a", hint: "none" })).toThrow("rows[0]: the item has no hint.text");
  expect(load({ answer: "a", hint: { text: "" } })).not.toThrow();
});

test("any formula is a number, or refused with a sentence", () => {
  const pieces = fc.constantFrom(
    "a",
    "b",
    "+",
    "-",
    "*",
    "/",
    "^",
    "(",
    ")",
    ",",
    "min",
    "log",
    "2",
    "1e3",
    ".5",
    " ",
    "**",
    "x",
    "\u0000",
  );
  fc.assert(
    fc.property(fc.array(pieces, { maxLength: 12 }), (parts) => {
      try {
        expect(
          typeof parseFormula(parts.join(""), ["a", "b"])(
            new Map([
              ["a", 1],
              ["b", 2],
            ]),
          ),
        ).toBe("number");
      } catch (error) {
        expect((error as Error).message).toContain("calculate_output");
      }
    }),
  );
  expect(() => parseFormula("(".repeat(500), [])).toThrow("less nesting");
  expect(() => parseFormula("1+".repeat(50_000), [])).toThrow("at most 1000");
  expect(() => parseFormula("process.exit(1)", ["a"])).toThrow('found "process" at 1');
});

describe("hone import rft", () => {
  const folder = temporaryFolder("rft");
  const job = {
    model: "o4-mini",
    training_file: "file-1",
    method: {
      type: "reinforcement",
      reinforcement: {
        grader: {
          type: "multi",
          graders: {
            exact: { ...check("eq"), name: "exact" },
            style: {
              type: "score_model",
              name: "style",
              model: "gpt-4.1",
              input: user,
              sampling_params: { seed: 7, temperature: 0.5 },
            },
            code: {
              type: "python",
              name: "code",
              source: "def grade(sample, item):\n    return 1.0\n",
              image_tag: "2025-05-08",
            },
          },
          calculate_output: "0.7 * exact + 0.2 * style + 0.1 * code",
        },
        response_format: { type: "json_schema", json_schema: { name: "n", schema: { type: "object" } } },
        hyperparameters: {
          batch_size: 16,
          n_epochs: 2,
          learning_rate_multiplier: 1.5,
          eval_interval: "auto",
          eval_samples: 4,
          reasoning_effort: "low",
        },
      },
    },
  };

  test("writes an experiment that a dry run accepts, and lists what is not carried over", () => {
    writeFileSync(join(folder, "job.json"), JSON.stringify(job));
    writeFileSync(
      join(folder, "data.jsonl"),
      Array.from({ length: 16 }, () => `${JSON.stringify({ messages: user, answer: "a" })}\n`).join(""),
    );
    const importing = () =>
      runHone(["import", "rft", join(folder, "job.json"), join(folder, "data.jsonl"), "-o", join(folder, "out")]);
    const imported = importing();
    expect([imported.status, imported.stderr]).toEqual([0, ""]);
    for (const part of [
      "image_tag of code",
      "sampling_params.seed of style: 7",
      "learning_rate_multiplier (1.5)",
      'model ("o4-mini")',
    ]) {
      expect(imported.stdout).toContain(part);
    }
    const written = readFileSync(join(folder, "out", "train.ts"), "utf8");
    expect(written).toContain('source: readFileSync(file("./grader.py"), "utf8")');
    expect(written).toContain("total_epochs: 2");
    expect(written).toContain('reasoningEffort: "low"');
    expect(readFileSync(join(folder, "out", "grader.py"), "utf8")).toBe("def grade(sample, item):\n    return 1.0\n");
    const dry = runHone(["train", join(folder, "out", "train.ts"), "--dry-run", "local.device=cpu"]);
    expect([dry.status, dry.stderr]).toEqual([0, expect.any(String)]);
    expect(dry.stdout).toContain("train_batch_size: 16");
    const again = importing();
    expect([again.status, again.stderr]).toEqual([2, expect.stringContaining("already exists")]);
  }, 180_000);

  test("an eval becomes the mean of its criteria", async () => {
    const { files, missing } = importJob(
      {
        data_source_config: { type: "custom", item_schema: { type: "object" }, include_sample_schema: true },
        testing_criteria: [
          { ...check("eq"), name: "Is it equal?" },
          { ...fuzzy, name: "close", pass_threshold: 0.8 },
        ],
        data_source: {
          type: "completions",
          input_messages: { type: "template", template: [{ role: "user", content: "{{ item.question }}" }] },
        },
      },
      { train: "./rows.jsonl" },
    );
    expect(files["train.ts"]).toContain('calculate_output: "(Is_it_equal + close) / 2"');
    expect(files["train.ts"]).toContain("{{ item.question }}");
    expect(missing).toEqual([expect.stringContaining("pass_threshold of close")]);
    const rows = fromRows("evals", [{ item: { question: "2 + 2?", answer: "4" } }]);
    const { train } = openaiRft({
      train: rows,
      grader: check("eq"),
      prompt: [{ role: "user", content: "{{ item.question }}" }],
    });
    expect(train.task(0).row).toEqual({
      messages: [{ role: "user", content: "2 + 2?" }],
      item: { question: "2 + 2?", answer: "4" },
    });
  });

  test.each<[unknown, string]>([
    [[], "not a JSON object"],
    [{ method: { type: "dpo" } }, "not reinforcement"],
    [{ method: { type: "reinforcement", reinforcement: {} } }, "no method.reinforcement.grader"],
    [{ testing_criteria: [] }, "testing_criteria"],
    [check("eq", "{{ env.KEY }}"), "env.KEY"],
    [check("eq", "{{ item.constructor('return 1')() }}"), "is not a reference"],
    [{ ...multi("exact + close.constructor"), name: "m" }, 'found "." at 14'],
    [{ method: { reinforcement: { grader: check("eq"), response_format: { type: "xml" } } } }, 'type "xml"'],
    [
      { method: { reinforcement: { grader: check("eq"), tools: [{ type: "web_search" }] } } },
      "tools[0] is not a function",
    ],
  ])("%j is refused", (given, message) => {
    expect(() => importJob(given, { train: "a" })).toThrow(message);
  });

  test("a job nested 50,000 deep is refused, wherever it is", () => {
    const nested = (inner: string) => JSON.parse(`${inner.repeat(50_000)}1${"}".repeat(50_000)}`);
    const reinforcement = { grader: check("eq") };
    const deep = nested('{"a":');
    for (const job of [
      nested('{"type":"multi","calculate_output":"a","graders":'),
      { x: deep, method: { reinforcement } },
      { method: { reinforcement: { ...reinforcement, hyperparameters: { x: deep } } } },
      { method: { reinforcement: { ...reinforcement, response_format: deep } } },
    ])
      expect(() => importJob(job, { train: "a" })).toThrow("nested more than 100 levels deep");
  });

  test("criteria of an eval whose names are alike are all kept", () => {
    const names = ["a b", "a-b", "1", "", "min"];
    const { files } = importJob(
      { testing_criteria: names.map((name) => ({ ...check("eq"), name })) },
      { train: "./rows.jsonl" },
    );
    expect(files["train.ts"]).toContain("(a_b + a_b_ + criterion_3 + criterion_4 + min) / 5");
    expect(files["train.ts"]!.match(/operation: "eq"/g)).toHaveLength(5);
  });

  test("the text of a job does not become code, and no setting is dropped silently", () => {
    const x = { type: "python", source: "1", name: "n\nprocess.exit()", image_tag: "t" };
    const text = check("eq", "read source 0");
    const { files, missing } = importJob(
      {
        typo: 1,
        created_at: 5,
        method: {
          reinforcement: {
            grader: { type: "multi", graders: { x, text }, calculate_output: "x" },
            tools: "search",
            hyperparameters: { batch_size: "8", n_epochs: -1, eval_interval: "auto", reasoning_effort: "extreme" },
          },
        },
      },
      { train: "a" },
    );
    expect(missing).toEqual([
      "typo (1)",
      'tools: "search"',
      expect.stringContaining("image_tag of n\nprocess.exit()"),
      'hyperparameters.reasoning_effort ("extreme"): it is not low, medium or high',
      "hyperparameters.n_epochs (-1): it is not a positive integer",
      'hyperparameters.batch_size ("8"): it is not a positive integer',
    ]);
    expect(files["train.ts"]).toContain("// - image_tag of n process.exit()");
    expect(files["train.ts"]).toContain('input: "read source 0"');
    expect(files["train.ts"]).toContain('source: readFileSync(file("./grader.py"), "utf8")');
  });
});
