import { createServer } from "node:http";
import { ExactMatch, Factuality, JSONDiff, Levenshtein } from "autoevals";
import OpenAI from "openai";
import { createLLMAsJudge, exactMatch, levenshteinDistance } from "openevals";
import { afterAll, describe, expect, test } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { listen } from "../base/http.ts";
import { exactMatch as honesExactMatch } from "../rewards/text.ts";
import { runWorkflow } from "../testing/scripted.ts";
import { asScorer, assertion, type Scorer, type ScorersOptions, scorers } from "./scorers.ts";

interface Row {
  question: string;
  expected?: string;
}

async function grade(list: readonly Scorer[], options: ScorersOptions<Row> = {}, reply = "Paris", expected = "Paris") {
  const rows: Row[] = [{ question: "Capital of France?", expected }];
  const workflow = singleTurn<Row>({ prompt: (row) => row.question, reward: scorers(list, options) });
  const [episode] = await runWorkflow({ workflow, rows, reply: () => reply, raiseOnError: false });
  const { metrics, explanation, correct, failure, trajectories } = episode!;
  return { reward: trajectories[0]?.reward, metrics, explanation, correct, failure };
}

/** Answers chat completions by the request. */
const requests: { messages: { content: string }[]; tools?: { function: { name: string } }[] }[] = [];
let running = 0;
let most = 0;
let busy = 0;
const server = createServer(async (request, response) => {
  most = Math.max(most, ++running);
  let text = "";
  for await (const piece of request) text += piece;
  await new Promise((resolve) => setTimeout(resolve, 20));
  running--;
  const body = JSON.parse(text);
  requests.push(body);
  if (busy-- > 0) {
    response.writeHead(429).end("{}");
    return;
  }
  const tool = body.tools?.[0]?.function.name;
  const answer = tool
    ? {
        content: null,
        tool_calls: [
          { id: "c", type: "function", function: { name: tool, arguments: '{"reasons":"same","choice":"C"}' } },
        ],
      }
    : { content: '{"reasoning":"fine","score":true}' };
  response.writeHead(200, { "content-type": "application/json" });
  response.end(
    JSON.stringify({
      id: "1",
      object: "chat.completion",
      choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", ...answer } }],
    }),
  );
});
const baseURL = `${await listen(server)}/v1`;
afterAll(() => server.close());
const client = new OpenAI({ baseURL, apiKey: "k", maxRetries: 0 });

describe("scorers as a reward", () => {
  test("autoevals 0.0.132: string and JSON scorers", async () => {
    const same = await grade([Levenshtein, ExactMatch]);
    expect(same).toMatchObject({ reward: 1, metrics: { "reward/Levenshtein": 1, "reward/ExactMatch": 1 } });
    expect((await grade([Levenshtein], {}, "Pariz")).reward).toBe(0.8);
    expect((await grade([JSONDiff], {}, '{"a":1}', '{"a":2}')).reward).toBeCloseTo(2 / 3, 9);
  });

  test("autoevals 0.0.132: a model's verdict, asked at a local server", async () => {
    const judge: Scorer = (call: { input: string; output: string; expected?: string }) =>
      Factuality({ ...call, client, model: "m" } as never);
    const found = await grade([{ name: "Factuality", scorer: judge }]);
    expect(found.reward).toBe(1);
    expect(
      requests
        .at(-1)!
        .messages.map(({ content }) => content)
        .join(),
    ).toContain("Capital of France?");
    expect(found.explanation).toContain("same");
  });

  test("openevals 0.2.2, the shape of LangSmith 0.12: booleans, numbers and a judge at a local server", async () => {
    const judge = createLLMAsJudge({
      prompt: "{inputs} {outputs} {reference_outputs}",
      feedbackKey: "correctness",
      judge: client as never,
      model: "m",
    });
    const found = await grade([exactMatch, levenshteinDistance, judge as Scorer], {}, "Pariz");
    expect(found.metrics).toMatchObject({
      "reward/exact_match": 0,
      "reward/levenshtein_distance": 0.8,
      "reward/correctness": 1,
    });
    expect(found.reward).toBeCloseTo((0 + 0.8 + 1) / 3, 12);
    expect(found.explanation).toContain("correctness 1 x 0.3333333333333333 (fine)");
  });

  // Shapes of these packages, recorded. The packages themselves: Mastra in examples/agents, the others in packages.e2e.ts.
  const shaped: [string, Scorer, number | null, object][] = [
    [
      "evalite's scorer",
      Object.defineProperty(
        async ({ output }: { output: string }) => ({
          score: Number(output === "Paris"),
          metadata: undefined,
          description: "d",
          name: "contains",
        }),
        "name",
        { value: "" },
      ),
      1,
      { "reward/contains": 1 },
    ],
    [
      "evalite's options",
      { name: "half", scorer: ({ expected }: { expected: string }) => ({ score: expected === "Paris" ? 0.5 : 0 }) },
      0.5,
      { "reward/half": 0.5 },
    ],
    [
      "vitest-evals' judge",
      {
        name: "ToolCallJudge",
        assess: ({ toolCalls }: { toolCalls: unknown[] }) => ({
          score: Number(toolCalls.length === 0),
          metadata: { rationale: "none" },
        }),
      },
      1,
      { "reward/ToolCallJudge": 1 },
    ],
    [
      "Mastra's scorer",
      {
        id: "tone",
        run: async ({ groundTruth }: { groundTruth: string }) => ({
          score: groundTruth === "Paris" ? 0.25 : 0,
          reason: "r",
        }),
      },
      0.25,
      { "reward/tone": 0.25 },
    ],
    [
      "Mastra's scorer that cannot score",
      { id: "tone", run: async () => ({ notScorable: "no tool was called" }) },
      null,
      {},
    ],
    [
      "LangSmith's value",
      ({ outputs }: { outputs: string }) => ({ key: "is_paris", value: outputs === "Paris" }),
      1,
      { "reward/is_paris": 1 },
    ],
    [
      "LangSmith's results",
      () => ({
        results: [
          { key: "a", score: 1 },
          { key: "b", score: 0 },
        ],
      }),
      0.5,
      { "reward/a": 1, "reward/b": 0 },
    ],
    [
      "promptfoo's assertion",
      assertion(
        async ({
          assertion: { value },
          providerResponse: { output },
        }: {
          assertion: { value: string };
          providerResponse: { output: string };
        }) => ({
          pass: true,
          score: Number(output.includes(value)),
          reason: "Assertion passed",
          namedScores: { part: 0.5 },
        }),
        { type: "contains", value: "Par" },
      ),
      1,
      { "reward/contains": 1, "reward/part": 0.5 },
    ],
    [
      "promptfoo's grader that failed",
      assertion(async () => ({ pass: false, score: 0, reason: "timeout", metadata: { graderError: true } }), {
        type: "llm-rubric",
      }),
      null,
      {},
    ],
    ["a boolean", () => false, 0, { "reward/scorer1": 0 }],
    ["null", () => null, null, {}],
    ["a score of null", () => ({ name: "n", score: null }), null, {}],
  ];
  test.each(shaped)("%s", async (_name, scorer, reward, metrics) => {
    const found = await grade([scorer], { threshold: 1 });
    expect(found).toMatchObject({ reward, metrics, failure: undefined, correct: reward === null ? null : reward >= 1 });
    expect(
      Object.keys(found.metrics)
        .filter((name) => name.startsWith("reward/"))
        .sort(),
    ).toEqual(Object.keys(metrics).sort());
  });

  test("weights, names, inputs and one unknown score", async () => {
    const first = function same({ input, expected }: { input: string; expected: string }) {
      return input === "q" && expected === "e";
    };
    const options = { input: () => "q", expected: () => "e" };
    const found = await grade(
      [
        { scorer: first, weight: 0.7 },
        { scorer: first, weight: 0.3, name: "again" },
        { scorer: first, weight: 0 },
      ],
      options,
    );
    expect(found).toMatchObject({ reward: 1, metrics: { "reward/same": 1, "reward/again": 1, "reward/same#2": 1 } });
    expect(await grade([first, () => undefined], options)).toMatchObject({
      reward: null,
      metrics: { "reward/same": 1 },
    });
  });

  test.each<[string, Scorer, string]>([
    [
      "throws",
      () => {
        throw new Error("boom");
      },
      "boom",
    ],
    ["returns an object without a score", () => ({ points: 1 }), "an object without a score: points"],
    ["returns a date", () => new Date(0), "an object without a score: no keys"],
    ["returns NaN", () => Number.NaN, "the scorer scorer1 returned NaN"],
    ["returns text", () => ({ name: "x", score: "1" }), "a score of type string"],
    ["returns nothing of a list", () => [], "an empty list"],
  ])("a scorer that %s is a failure of the reward, not a reward of 0", async (_name, scorer, message) => {
    const found = await grade([scorer]);
    expect(found).toMatchObject({
      reward: null,
      failure: { boundary: "reward", message: expect.stringContaining(message) },
    });
  });

  test("a scorer whose server is busy is asked again, and at most `concurrency` at the same time", async () => {
    busy = 1;
    most = 0;
    const judge: Scorer = async () => {
      await client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "?" }] });
      return 1;
    };
    const found = await grade([judge, judge, judge, judge], { concurrency: 2, pauseSeconds: 0.01 });
    expect(found).toMatchObject({ reward: 1, metrics: { scorer_retries: 1 } });
    expect(most).toBe(2);
  });

  test("a scorer that never answers gives back its place when its rollout times out", async () => {
    let calls = 0;
    const first: Scorer = () => (calls++ === 0 ? new Promise(() => {}) : 1);
    const reward = scorers<Row>([first], { concurrency: 1 });
    const workflow = singleTurn<Row>({ prompt: (row) => row.question, reward });
    const rows = [{ question: "a" }, { question: "b" }];
    const play = () =>
      runWorkflow({ workflow, rows: rows.splice(0, 1), reply: () => "x", timeoutSeconds: 0.5, raiseOnError: false });
    expect((await play())[0]!.termination).toBe("timeout");
    expect((await play())[0]!.trajectories[0]!.reward).toBe(1);
  });

  test("what is not a scorer is refused when the reward is made", () => {
    expect(() => scorers([])).toThrow("at least one");
    expect(() => scorers([{ score: 1 } as never])).toThrow("entry 0 has the shape of no known scorer; it has score");
    expect(() => scorers([null as never])).toThrow("entry 0 is null");
    expect(() => scorers([{ scorer: () => 1, weight: Number.NaN }])).toThrow("the weight of entry 0 is NaN");
  });
});

test("a reward is a scorer: for callers with output and expected, and for those with outputs and referenceOutputs", async () => {
  const scorer = asScorer<Row>((row, reply) => honesExactMatch(reply.text, row.expected!), {
    name: "exact",
    row: ({ input, expected }) => ({ question: String(input), expected: String(expected) }),
  });
  expect(await scorer({ input: "q", output: "a", expected: "a" })).toMatchObject({
    name: "exact",
    key: "exact",
    score: 1,
  });
  expect(await scorer({ inputs: "q", outputs: "b", referenceOutputs: "a" })).toMatchObject({
    score: 0,
    comment: expect.any(String),
  });
  const twice = await grade([scorer as Scorer]);
  expect(twice).toMatchObject({ reward: 1, metrics: { "reward/exact": 1 } });
});
