/** Rollouts whose agents call the model over HTTP: calls are recorded for the rollout, and failures are classified. */
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterAll, describe, expect, test } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { ownDistribution } from "../backends/engine-parts.ts";
import { runRollouts } from "../rollout/rollouts.ts";
import { createSamplingClient } from "../rollout/session.ts";
import { runWorkflow, scriptedSampler } from "../testing/scripted.ts";
import { toBatch, toSequences } from "../trajectories/batch.ts";
import { groupTrajectories } from "../trajectories/groups.ts";
import { openGateway } from "./gateway.ts";
import { gatewayBaseURL, inGatewayContext, rolloutGateway } from "./sessions.ts";
import { openTraceStore } from "./traces/store.ts";

interface Row {
  word: string;
}

/** Created once, outside of rollouts, as in a user's module. */
const shared = new OpenAI({ baseURL: gatewayBaseURL(), apiKey: "any", maxRetries: 0 });

const ask = async (client: OpenAI, content: string, more: object = {}) => {
  const reply = await client.chat.completions.create({ model: "m", messages: [{ role: "user", content }], ...more });
  return reply.choices[0]!.message.content;
};

const echo = (messages: { content: string }[]) => `re: ${messages.at(-1)!.content}`;
const rows = Array.from({ length: 20 }, (_, index) => ({ word: `word${index}` }));

describe("the rollout of a call", () => {
  test("a client created in the workflow, with the rollout's own address", async () => {
    const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
      const client = new OpenAI({ baseURL: gateway.baseURL, apiKey: gateway.apiKey });
      return (await ask(client, row.word)) === `re: ${row.word}` ? 1 : 0;
    };
    const episodes = await runWorkflow({ workflow, rows, reply: echo, n: 2 });
    expect(
      episodes.map(({ trajectories }) => trajectories.map(({ name, reward, steps }) => [name, reward, steps.length])),
    ).toEqual(Array(40).fill([["agent", 1, 1]]));
    expect(episodes.map(({ trajectories }) => trajectories[0]!.steps[0]!.messages[0]!.content)).toEqual(
      rows.flatMap(({ word }) => [word, word]),
    );
  });

  test("one client shared by concurrent rollouts", async () => {
    const workflow: Workflow<Row> = async ({ row }) => {
      const first = await ask(shared, row.word);
      await new Promise((resolve) => setTimeout(resolve, Number(row.word.slice(4)) % 3));
      const second = await ask(shared, `${first}!`);
      return second === `re: re: ${row.word}!` ? 1 : 0;
    };
    const episodes = await runWorkflow({ workflow, rows, reply: echo });
    for (const [index, { trajectories }] of episodes.entries()) {
      expect(trajectories).toMatchObject([{ reward: 1, steps: [{}, {}] }]);
      expect(trajectories[0]!.steps.map(({ messages }) => messages[0]!.content)).toEqual([
        `word${index}`,
        `re: word${index}!`,
      ]);
    }
  });

  test("roles and metadata, by address and by context", async () => {
    const workflow: Workflow<Row> = async (_, { gateway, model }) => {
      const judge = gateway.as("judge");
      await ask(new OpenAI({ baseURL: judge.baseURL, apiKey: judge.apiKey }), "by address");
      await inGatewayContext({ role: "judge" }, () => ask(shared, "by context"));
      await inGatewayContext({ role: "solver", instance: 2 }, () => ask(shared, "instance"));
      await model.as("judge").chat([{ role: "user", content: "by the model client" }]);
      return { reward: 0, rewards: { judge: 1, "solver#2": 2 } };
    };
    const [episode] = await runWorkflow({ workflow, rows: rows.slice(0, 1), reply: echo });
    expect(episode!.trajectories).toMatchObject([
      { name: "judge", reward: 1, steps: [{}, {}, {}] },
      { name: "solver", instance: 2, reward: 2, steps: [{}] },
    ]);
  });

  test("calls without tools are side calls, unless the agent never offers tools", async () => {
    const tools = [{ type: "function", function: { name: "bash", parameters: { type: "object" } } }];
    const workflow =
      (...offers: (object | undefined)[]): Workflow<Row> =>
      async (_, { gateway }) => {
        gateway.separateSideCalls();
        const client = new OpenAI({ baseURL: gateway.baseURL, apiKey: gateway.apiKey });
        for (const more of offers) await ask(client, "go", more);
        return { reward: 1, correct: true, rewards: { side: null } };
      };
    const rolesOf = async (...offers: (object | undefined)[]) => {
      const [episode] = await runWorkflow({ workflow: workflow(...offers), rows: rows.slice(0, 1), reply: () => "ok" });
      return episode!.trajectories.map(({ name, reward, steps }) => [name, reward, steps.length]);
    };
    expect(await rolesOf(undefined, { tools }, undefined)).toEqual([
      ["agent", 1, 1],
      ["side", null, 2],
    ]);
    expect(await rolesOf(undefined, undefined)).toEqual([["agent", 1, 2]]);
  });

  test("a call outside of rollouts is refused", async () => {
    await expect(ask(shared, "hello", {})).rejects.toThrow();
    await expect(Promise.resolve().then(() => fetch(`${gatewayBaseURL()}/models`))).rejects.toThrow(
      "outside of a rollout",
    );
  });
});

describe("the end of a rollout", () => {
  const viaHttp: Workflow<Row> = async ({ row }) => Number((await ask(shared, row.word)) !== "");

  test("a prompt that is too long ends the rollout for that reason and is not a failure", async () => {
    const [episode] = await runWorkflow({
      workflow: viaHttp,
      rows: [{ word: "x".repeat(50) }],
      reply: echo,
      maxPromptLength: 20,
    });
    expect(episode).toMatchObject({ termination: "max_prompt_length_exceeded", trajectories: [] });
    expect(episode!.failure).toBeUndefined();
  });

  test("an engine that fails is reported as the model's failure, not the workflow's, and is called once", async () => {
    let calls = 0;
    const reply = () => {
      calls++;
      throw new Error("out of memory");
    };
    const [episode] = await runWorkflow({ workflow: viaHttp, rows: rows.slice(0, 1), reply, raiseOnError: false });
    expect(episode).toMatchObject({
      termination: "error",
      failure: { kind: "infrastructure", boundary: "engine", message: "model call 1 failed: out of memory" },
      trajectories: [],
    });
    expect(calls).toBe(1);
  });

  test("a rollout that exceeds its time limit reports that it was waiting for the model", async () => {
    const reply = () => new Promise<string>(() => {});
    const options = { workflow: viaHttp, rows: rows.slice(0, 1), reply, raiseOnError: false };
    const [episode] = await runWorkflow({ ...options, timeoutSeconds: 0.2 });
    expect(episode).toMatchObject({
      termination: "timeout",
      failure: { boundary: "timeout", message: expect.stringContaining("waiting for the model") },
    });
  });

  test("a request that is always refused is sent once, ends the run, and names the setting that allows it", async () => {
    let attempts = 0;
    const schema = { type: "object", properties: {} };
    const workflow: Workflow<Row> = async ({ row }) => {
      attempts++;
      await ask(shared, row.word);
      await ask(shared, row.word, {
        response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
      });
      return 1;
    };
    const { gateway, run } = await ownGateway();
    const error = await run(workflow, undefined, { raiseOnError: true, retryLimit: 3 }).catch((thrown) => thrown);
    expect(error).toMatchObject({
      name: "UserError",
      message: expect.stringContaining("rllm.gateway.unenforceable=allow"),
    });
    expect(attempts).toBe(1);
    await gateway.close();
  });

  test("a rollout whose client has a wrong base URL is not retried, and names the right one", async () => {
    let attempts = 0;
    const workflow: Workflow<Row> = async (_task, { gateway: { baseURL, apiKey } }) => {
      attempts++;
      const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
      await client.messages.create({ model: "m", max_tokens: 5, messages: [{ role: "user", content: "a" }] });
      return 1;
    };
    const { gateway, run } = await ownGateway();
    const error = await run(workflow, undefined, { raiseOnError: true, retryLimit: 3 }).catch((thrown) => thrown);
    expect(error).toMatchObject({ name: "UserError", message: expect.stringContaining("gateway.anthropicBaseURL") });
    expect(attempts).toBe(1);
    await gateway.close();
  });

  test("a refusal that the agent handles is not a failure", async () => {
    const workflow: Workflow<Row> = async ({ row }) => {
      await ask(shared, row.word, { frequency_penalty: 1 }).catch(() => undefined);
      await ask(shared, row.word);
      throw new Error("something else");
    };
    const [episode] = await runWorkflow({ workflow, rows: rows.slice(0, 1), reply: echo, raiseOnError: false });
    expect(episode!.failure).toMatchObject({ kind: "agent", message: "workflow threw Error: something else" });
  });

  test("a workflow's own failure is reported as the workflow's", async () => {
    const workflow: Workflow<Row> = async ({ row }) => {
      await ask(shared, row.word);
      throw new Error("my mistake");
    };
    const [episode] = await runWorkflow({ workflow, rows: rows.slice(0, 1), reply: echo, raiseOnError: false });
    expect(episode!.failure).toMatchObject({ boundary: "workflow", message: expect.stringContaining("my mistake") });
  });

  test("a call after the end is refused", async () => {
    let late: Promise<unknown> = Promise.resolve();
    let go = () => {};
    const ended = new Promise<void>((resolve) => {
      go = resolve;
    });
    const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
      const { baseURL } = gateway;
      late = ended.then(() =>
        fetch(`${baseURL}/chat/completions`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ messages: [{ role: "user", content: row.word }] }),
        }),
      );
      return 1;
    };
    const { gateway, run } = await ownGateway();
    const [episode] = await run(workflow);
    go();
    expect(((await late) as Response).status).toBe(410);
    expect(episode!.trajectories).toMatchObject([{ steps: [] }]);
    await gateway.close();
  });
});

const stores: { close(): void }[] = [];
afterAll(() => {
  for (const store of stores) store.close();
});

async function ownGateway() {
  const scripted = scriptedSampler(echo);
  const store = openTraceStore({ path: ":memory:" });
  stores.push(store);
  const gateway = await openGateway({ chat: scripted.chat, model: "policy", store });
  const run = (
    workflow: Workflow<Row>,
    grouping = { groupBy: null as string | null, nameBy: null as string | null },
    more: { raiseOnError?: boolean; retryLimit?: number } = {},
  ) =>
    runRollouts({
      tasks: [{ id: "task", row: { word: "first" }, origin: "here" }],
      ...{ n: 1, workflow, purpose: "train" as const, nParallelTasks: 1, retryLimit: 1, timeoutSeconds: 10 },
      client: createSamplingClient({
        ...scripted,
        defaults: ownDistribution,
        limits: { maxPromptLength: 1000, maxResponseLength: 1000 },
        seedFor: () => 1,
        grouping,
      }),
      raiseOnError: false,
      gateway: rolloutGateway(gateway, { prefix: "train-3/", enforceSampling: true }),
      ...more,
    });
  return { gateway, store, run };
}

test("calls with the same metadata are one trajectory, and metadata names it", async () => {
  const { gateway, run } = await ownGateway();
  const workflow: Workflow<Row> = async () => {
    for (const attempt of [1, 2, 1]) {
      await inGatewayContext({ metadata: { agent: "solver", try: attempt } }, () => ask(shared, `try ${attempt}`));
    }
    await ask(shared, "no metadata", { metadata: { agent: "checker" } });
    return 1;
  };
  const [episode] = await run(workflow, { groupBy: "try", nameBy: "agent" });
  expect(episode!.trajectories.map(({ name, steps }) => [name, steps.length])).toEqual([
    ["solver", 2],
    ["solver", 1],
    ["checker", 1],
  ]);
  await gateway.close();
});

test("the run's own sampling wins over the client's, counted and logged once", async () => {
  const { gateway, store, run } = await ownGateway();
  await run(async () => Number((await ask(shared, "hi", { temperature: 0, seed: 7, max_tokens: 3 })) === "re:"));
  const [session] = store.sessions();
  expect(session).toMatchObject({
    session: "train-3/task:0",
    taskId: "task",
    reward: 1,
    termination: "env_done",
    calls: 1,
  });
  const [trace] = store.traces({ session: "train-3/task:0", attempt: 0 });
  expect(trace!.params).toMatchObject({ temperature: 1, seed: 1, maxTokens: 3 });
  expect(gateway.counts()).toMatchObject({ "gateway/overridden/temperature": 1, "gateway/overridden/seed": 1 });
  await gateway.close();
});

test("chat and /v1/completions in one rollout are separate sequences, and none is dropped", async () => {
  const workflow: Workflow<Row> = async ({ row }, { gateway }) => {
    const client = new OpenAI({ baseURL: gateway.baseURL, apiKey: gateway.apiKey });
    const complete = (prompt: string | string[] | number[]) =>
      client.completions.create({ model: "m", prompt, max_tokens: 3 });
    await ask(client, row.word);
    await complete("once upon");
    await complete(["a time", "there was"]);
    await ask(client, `${row.word} again`);
    return 1;
  };
  const episodes = await runWorkflow({ workflow, rows: rows.slice(0, 1), n: 2, reply: () => "fine", purpose: "train" });
  // As if a policy in training had answered.
  for (const { steps } of episodes.flatMap(({ trajectories }) => trajectories))
    for (const step of steps) step.policyVersion = 0;
  const { groups } = groupTrajectories(episodes);
  const { batch, metrics } = toBatch(groups, [[1, -1]], { maxLength: 1000, filterTokenMismatch: true });
  expect(batch.sequences.length).toBe(10);
  expect(metrics).toMatchObject({
    "batch/sequence_starts/raw_prompt": 6,
    "batch/sequence_starts/new_conversation": 2,
    "batch/dropped_sequences/token_mismatch": 0,
    "batch/sequence_breaks": 0,
  });
});

test("a prompt of /v1/completions that begins with an earlier call's tokens continues its sequence", async () => {
  const workflow: Workflow<Row> = async (_, { gateway }) => {
    const complete = async (prompt: number[]) => {
      const response = await fetch(`${gateway.baseURL}/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", authorization: `Bearer ${gateway.apiKey}` },
        body: JSON.stringify({ prompt, max_tokens: 3, return_token_ids: true }),
      });
      return ((await response.json()) as { choices: [{ token_ids: number[] }] }).choices[0].token_ids;
    };
    const prompt = [104, 105];
    await complete([...prompt, ...(await complete(prompt)), 33]);
    return 1;
  };
  const [episode] = await runWorkflow({ workflow, rows: rows.slice(0, 1), reply: () => "fine", purpose: "train" });
  expect(episode!.trajectories[0]!.steps.map(({ starts }) => starts)).toEqual(["raw_prompt", undefined]);
  expect(toSequences(episode!.trajectories[0]!)).toMatchObject({ sequences: [{}], causes: [] });
});
