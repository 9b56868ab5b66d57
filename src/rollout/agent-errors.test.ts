/** The reward of a rollout whose agent throws: mistakes of the model are data, failures of the infrastructure are not. */
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { RunError, UserError } from "../errors.ts";
import { runWorkflow } from "../testing/run-workflow.ts";
import type { Script } from "../testing/scripted-sampler.ts";
import { episodeMetrics } from "../trajectories/metrics.ts";
import type { Episode, Failure } from "../trajectories/types.ts";
import { type Row, rewards, setUp, tasksOf } from "./run-rollouts.fixture.ts";
import { parseOnAgentError } from "./run-rollouts.ts";

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
