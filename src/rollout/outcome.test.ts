import OpenAI from "openai";
import { describe, expect, it, test } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { RunError, UserError } from "../base/errors.ts";
import { runWorkflow, type Script } from "../testing/scripted.ts";
import { episodeMetrics } from "../trainer/record.ts";
import type { Episode, Failure, Step } from "../trajectories/types.ts";
import { checkOutcome, keptRow } from "./outcome.ts";
import { parseOnAgentError } from "./rollouts.ts";
import { type Row, rewards, setUp, tasksOf } from "./run-rollouts.fixture.ts";

const circular: { self?: unknown } = {};
circular.self = circular;

it.each<[string, unknown, unknown]>([
  ["plain values", { question: "2+2", answer: 4 }, { question: "2+2", answer: 4 }],
  [
    "numbers that JSON does not know",
    { big: 9007199254740993n, none: Number.NaN },
    { big: "9007199254740993", none: "NaN" },
  ],
  ["a date", { day: new Date(0) }, { day: "1970-01-01T00:00:00.000Z" }],
  [
    "long bytes",
    { image: { bytes: new Uint8Array(1025) }, file: Buffer.alloc(2000) },
    { image: { bytes: "[1025 bytes]" }, file: "[2000 bytes]" },
  ],
  ["nothing", undefined, "[not kept: undefined]"],
  ["a circle", circular, "[not kept: Converting circular structure to JSON]"],
  ["a large one", "x".repeat(70_000), `[not kept: 70002 characters] "${"x".repeat(199)}`],
])("an episode keeps its task's row: %s", (_, row, kept) => {
  expect(keptRow(row)).toEqual(kept);
});

const recorded = [
  { name: "solver", instance: 1, steps: [{}, {}] as Step[], reward: null },
  { name: "judge", steps: [{ tokens: Int32Array.of(5, 6) }] as Step[], reward: null },
];

test.each<[unknown, string]>([
  [Number.NaN, "returned NaN; a reward must be a finite number, or { reward: null } if unknown"],
  [Number.POSITIVE_INFINITY, "returned Infinity"],
  [1e308, "returned 1e+308"],
  [{ reward: 1, advantages: { judge: [-1e39] } }, "returned advantages.judge -1e+39"],
  [undefined, "returned undefined; a reward must be"],
  [null, "returned null"],
  [true, "returned true"],
  ["1", 'returned "1"'],
  [[1], "returned [1]"],
  [{}, "without `reward`: {}"],
  [{ score: 1 }, 'without `reward`: {"score":1}'],
  [{ reward: undefined }, "returned reward undefined"],
  [{ reward: Number.NaN }, "returned reward NaN"],
  [{ reward: 1, correct: 1 }, "returned correct 1; it must be a boolean"],
  [{ reward: 1, explanation: 2 }, "returned explanation 2; it must be a string"],
  [{ reward: 1, metrics: { length: Number.NaN } }, "returned metrics.length NaN"],
  [{ reward: 1, metrics: 3 }, "returned metrics 3; it must be an object"],
  [{ reward: 1, rewards: { judge: "x" } }, 'returned rewards.judge "x"'],
  [{ reward: 1, rewards: { jugde: 1 } }, 'the role "jugde", but the model was called as solver#1, judge only'],
  [{ reward: 1, stepRewards: { judge: [1, 2] } }, 'returned 2 stepRewards for "judge", which called the model 1 times'],
  [{ reward: 1, stepRewards: { judge: [Number.NaN] } }, "returned stepRewards.judge NaN"],
  [{ reward: 1, stepRewards: { judge: 1 } }, "it must be a list"],
  [{ reward: 1, advantages: { judge: [1, 2] } }, 'returned 2 advantages for "judge", which called the model 1 times'],
  [
    { reward: 1, advantages: { judge: [Number.NaN] } },
    "returned advantages.judge NaN; it must be a finite number, or one for",
  ],
  [{ reward: 1, advantages: { judge: [[1, 2, 3, 4, 5, 6, 7]] } }, "one for each of the reply's"],
  [{ reward: 1, termination: "timeout" }, 'returned termination "timeout"; it must be one of env_done'],
])("refuses %j", (value, message) => {
  expect(() => checkOutcome(value, recorded)).toThrow(message);
});

test("refuses values that JSON cannot express by showing them", () => {
  const circular: Record<string, unknown> = {};
  circular.self = circular;
  expect(() => checkOutcome({ reward: circular }, recorded)).toThrow(/returned reward .*Circular/);
  expect(() => checkOutcome(10n, recorded)).toThrow("returned 10");
  expect(() => checkOutcome(Symbol("x"), recorded)).toThrow("returned Symbol(x)");
});

test.each<[unknown, unknown]>([
  [0.5, { reward: 0.5 }],
  [{ reward: null }, { reward: null }],
  [
    { reward: 1, correct: true, explanation: "", metrics: {} },
    { reward: 1, correct: true, explanation: "", metrics: {} },
  ],
  [
    { reward: 1, rewards: { judge: null, absent: null, solver: 1, "solver#1": 0 } },
    { reward: 1, rewards: { judge: null, absent: null, solver: 1, "solver#1": 0 } },
  ],
  [
    { reward: 1, stepRewards: { "solver#1": [0, null] }, termination: "max_turns_exceeded" },
    { reward: 1, stepRewards: { "solver#1": [0, null] }, termination: "max_turns_exceeded" },
  ],
])("accepts %j", (value, outcome) => {
  expect(checkOutcome(value, recorded)).toEqual(outcome);
});

/** The reward of a rollout whose agent throws: mistakes of the model are data, failures of the infrastructure are not. */

const hello = [{ role: "user" as const, content: "hi" }];
const one = { tasks: tasksOf("one"), n: 1 };

/** As an agent framework does with a reply that does not fit its schema. */
class ModelBehaviorError extends Error {}
const strictAgent: Workflow<Row> = async (_, { model }) => {
  const { text } = await model.chat(hello);
  if (!text.startsWith("{")) throw new ModelBehaviorError(`not JSON: ${text}`);
  return 1;
};

describe("a model's mistake that makes the agent throw", () => {
  /** Three of ten replies are usable; a reply sampled again after a bad one is good. */
  const replies = (): Script => {
    let calls = 0;
    return () => (calls++ % 10 < 3 || calls > 20 ? "{}" : "sorry");
  };
  const twenty = { tasks: tasksOf(...Array.from({ length: 20 }, (_, index) => `${index}`)), n: 1, retryLimit: 3 };
  const shareOfGood = (episodes: Episode[]) =>
    rewards(episodes)
      .flat()
      .filter((reward) => reward === 1).length / 20;

  test("gets a reward of 0 by default, so that the mean reward is the share of usable replies", async () => {
    const episodes = await setUp({ workflow: strictAgent, reply: replies() }).run({ ...twenty, raiseOnError: true });
    expect(shareOfGood(episodes)).toBe(0.3);
    expect(episodes.map(({ retries }) => retries)).toEqual(Array(20).fill(0));
    const bad = episodes.find(({ failure }) => failure !== undefined);
    expect(bad).toMatchObject({
      termination: "error",
      correct: false,
      failure: { kind: "model", boundary: "workflow", message: "workflow threw ModelBehaviorError: not JSON: sorry" },
      trajectories: [{ reward: 0, steps: [{ text: "sorry" }] }],
    });
  });

  test.each<[Parameters<typeof parseOnAgentError>[0], number, (number | null)[]]>([
    ["retry", 1, []],
    ["drop", 0.3, Array(14).fill(null)],
    ["reward:-0.5", 0.3, Array(14).fill(-0.5)],
  ])("on_agent_error=%s", async (rule, share, worth) => {
    const reply = replies();
    const { run } = setUp({ workflow: strictAgent, reply, onAgentError: parseOnAgentError(rule) });
    const episodes = await run({ ...twenty, raiseOnError: true });
    expect(shareOfGood(episodes)).toBe(share);
    const failed = episodes.filter(({ failure }) => failure !== undefined);
    expect(failed.flatMap((episode) => rewards([episode])[0])).toEqual(worth);
    expect(Math.max(...episodes.map(({ retries }) => retries))).toBe(rule === "retry" ? 1 : 0);
  });

  test("on_agent_error=fail stops the run, even if failed rollouts do not", async () => {
    const { run } = setUp({ workflow: strictAgent, reply: () => "sorry", onAgentError: "fail", retryLimit: 3 });
    await expect(run({ raiseOnError: false })).rejects.toThrow(RunError);
  });

  test("is distinguished from the agent's own errors, in episodes and in metrics", async () => {
    const failures: [Script, Workflow<Row>, Partial<Failure>][] = [
      [() => "sorry", strictAgent, { kind: "model" }],
      [
        () => "sorry",
        async (_, { model }) => {
          await model.chat(hello, { maxTokens: 2 });
          throw new Error("unfinished");
        },
        {
          kind: "model",
          message:
            "workflow threw Error: unfinished; the model's last reply was cut off after 2 tokens (the model call's own limit)",
        },
      ],
      [
        () => "<tool_call>\n{",
        async (_, { model }) => {
          await model.chat(hello, { tools: [{ name: "add" }] });
          throw new TypeError("no call");
        },
        { kind: "model", message: expect.stringContaining("a tool call has no </tool_call>") },
      ],
      [
        () => "fine",
        async (_, { model }) => {
          await model.chat(hello);
          throw new TypeError("a bug");
        },
        { kind: "agent", message: "workflow threw TypeError: a bug" },
      ],
      [
        () => "fine",
        async (_, { model, stage }) => {
          await model.chat(hello);
          stage("reward");
          throw new TypeError("no column");
        },
        { kind: "reward", boundary: "reward" },
      ],
      [
        () => "fine",
        async (_, { model }) => {
          await model.chat(hello);
          throw Object.assign(new TypeError("fetch failed"), {
            cause: Object.assign(new Error(), { code: "ECONNREFUSED" }),
          });
        },
        { kind: "infrastructure", boundary: "workflow" },
      ],
      [() => Promise.reject(new Error("out of memory")), strictAgent, { kind: "infrastructure", boundary: "engine" }],
    ];
    const episodes: Episode[] = [];
    for (const [reply, workflow, failure] of failures) {
      const [episode] = await setUp({ reply, workflow, limits: { maxPromptLength: 1000 } }).run({
        ...one,
        retryLimit: 1,
      });
      expect(episode).toMatchObject({ termination: "error", failure });
      expect(episode!.trajectories[0]?.reward ?? null).toBe(/model|agent/.test(failure.kind!) ? 0 : null);
      episodes.push(episode!);
    }
    expect(episodes.at(-1)!.retriedAfter).toEqual([
      { kind: "infrastructure", boundary: "engine", message: "model call 1 failed: out of memory" },
    ]);
    expect(episodeMetrics(episodes)).toMatchObject({
      "batch/failed_episodes": 7,
      "batch/failed_episodes_rewarded": 4,
      "batch/failures/model": 3,
      "batch/failures/agent": 1,
      "batch/failures/reward": 1,
      "batch/failures/infrastructure": 2,
      "batch/retries": 2,
      "batch/retries/model": 0,
      "batch/retries/infrastructure": 2,
    });
  });

  test("each failure that does not end the run is reported once, with its reward", async () => {
    const reported: unknown[] = [];
    const { run } = setUp({ workflow: strictAgent, reply: () => "sorry" });
    await run({ ...one, onFailure: ({ failure, ...rest }) => reported.push({ ...rest, kind: failure.kind }) });
    await run({ ...one, onAgentError: "drop", onFailure: ({ reward }) => reported.push(reward) });
    expect(reported).toEqual([{ taskId: "one", rollout: 0, kind: "model", reward: 0 }, null]);
  });
});

describe("a reply that is cut off by the run's limit", () => {
  test.each<[Parameters<typeof parseOnAgentError>[0], number | null]>([
    ["reward:0", 0],
    ["retry", null],
    ["drop", null],
    ["fail", null],
  ])("ends the rollout at that limit when the agent throws, with on_agent_error=%s", async (rule, reward) => {
    const onAgentError = parseOnAgentError(rule);
    const { run } = setUp({
      workflow: strictAgent,
      reply: () => "too long",
      limits: { maxResponseLength: 3 },
      onAgentError,
    });
    const [episode] = await run({ ...one, retryLimit: 3, raiseOnError: true });
    expect(episode).toMatchObject({
      termination: "max_response_length_exceeded",
      retries: 0,
      failure: {
        kind: "model",
        message:
          "workflow threw ModelBehaviorError: not JSON: too; the model's last reply was cut off after 3 tokens (data.max_response_length)",
      },
      trajectories: [{ reward }],
    });
  });
});

describe("an unanswered call is not a mistake of the model, even if the agent throws its client's error", () => {
  const run = (workflow: Workflow<Row>, reply: Script) =>
    runWorkflow({ workflow, rows: [{ word: "one" }], reply, raiseOnError: false, onAgentError: { reward: 0 } });
  const clientOf = ({ baseURL, apiKey }: { baseURL: string; apiKey: string }) =>
    new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const ask = (client: OpenAI, content: string, options = {}) =>
    client.chat.completions.create({ model: "m", messages: [{ role: "user", content }] }, options);

  test("one of several calls made side by side fails, and others are answered after it", async () => {
    const workflow: Workflow<Row> = async (_, { gateway }) => {
      const client = clientOf(gateway);
      const bad = ask(client, "bad").catch((error: unknown) => error);
      await bad;
      await ask(client, "good");
      throw new Error("the branches failed", { cause: await bad });
    };
    const reply: Script = (messages) => {
      if (messages[0]!.content === "bad") throw new Error("out of memory");
      return "fine";
    };
    const [episode] = await run(workflow, reply);
    expect(episode).toMatchObject({
      failure: { kind: "infrastructure", boundary: "engine" },
      trajectories: [{ reward: null }],
    });
  });

  test("its client gives up waiting after an earlier call was answered", async () => {
    const workflow: Workflow<Row> = async (_, { gateway }) => {
      const client = clientOf(gateway);
      await ask(client, "good");
      await ask(client, "slow", { timeout: 50 });
      return 1;
    };
    const reply: Script = (messages) => (messages[0]!.content === "slow" ? new Promise(() => {}) : "fine");
    const [episode] = await run(workflow, reply);
    expect(episode).toMatchObject({ failure: { kind: "infrastructure" }, trajectories: [{ reward: null }] });
  });
});

test("mistakes of the user stop the run at once, regardless of on_agent_error", async () => {
  let attempts = 0;
  const workflow: Workflow<Row> = async (_, { model }) => {
    attempts++;
    await model.chat(hello);
    throw new UserError("no such column", { hint: "name the column" });
  };
  const error = await setUp({ workflow, retryLimit: 3 })
    .run({ ...one, raiseOnError: true })
    .catch((thrown) => thrown);
  expect(error).toMatchObject({ exitCode: 2, hint: expect.stringContaining("name the column") });
  expect(attempts).toBe(1);
});
