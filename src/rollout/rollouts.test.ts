import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { singleTurn } from "../agents/workflows.ts";
import type { Sample, SampleOptions, SampleRequest } from "../backends/engine.ts";
import { ownDistribution } from "../backends/engine-parts.ts";
import { uniforms } from "../base/values.ts";
import type { Task } from "../data/dataset.ts";
import { type Script, scriptedSampler } from "../testing/scripted.ts";
import type { Episode } from "../trajectories/types.ts";
import { runRollouts } from "./rollouts.ts";
import { type Row, rewards, setUp, tasksOf } from "./run-rollouts.fixture.ts";
import type { SampleSource } from "./sample-queue.ts";
import { createSamplingClient, rolloutSeed } from "./session.ts";
import type { SamplingClientOptions } from "./types.ts";

test("an episode records what was sent, sampled and rewarded, by task and rollout", async () => {
  const calls: (readonly SampleRequest[])[] = [];
  const { run } = setUp({ watch: (requests) => calls.push(requests) });
  const ended: string[] = [];
  const episodes = await run({ onEpisode: (episode) => ended.push(episode.id) });
  const ids = ["one:0", "one:1", "two:0", "two:1", "three:0", "three:1"];
  expect(episodes.map((episode) => episode.id)).toEqual(ids);
  expect(ended.sort()).toEqual([...ids].sort());
  expect(episodes[3]).toMatchObject({
    taskId: "two",
    rollout: 1,
    termination: "env_done",
    correct: null,
    metrics: {},
    retries: 0,
    trajectories: [{ name: "agent", reward: 1 }],
  });
  expect(episodes[3]!.failure).toBeUndefined();
  const step = episodes[3]!.trajectories[0]!.steps[0]!;
  expect(step).toMatchObject({
    text: "two",
    stopReason: "stop",
    policyVersion: -1,
    reward: null,
    messages: [{ role: "user", content: "two" }],
  });
  expect(step.logprobs.length).toBe(step.tokens.length);

  // Six rollouts in step: one engine call, in their order, each with its own seed and the defaults.
  expect(calls.length).toBe(1);
  expect(calls[0]!.map(({ params }) => params.seed)).toEqual(
    episodes.map(({ taskId, rollout }) => rolloutSeed(1, 2)({ taskId, rollout, attempt: 0, turn: 0 })),
  );
  expect(new Set(calls[0]!.map(({ params }) => params.seed)).size).toBe(6);
  expect(calls[0]![3]!.prompt).toEqual(step.promptTokens);
  expect(calls[0]![0]!.params).toMatchObject({ maxTokens: 100, temperature: 0.7, topP: 0.9, topK: 5, minP: 0.1 });
});

test("rollouts whose prompts take time are still sampled together", async () => {
  const sizes: number[] = [];
  const workflow = singleTurn<Row>({
    prompt: async (row) => {
      for (let turn = 0; turn < row.word.length; turn++) await null;
      return row.word;
    },
    reward: () => 1,
  });
  await setUp({ workflow, watch: (requests) => sizes.push(requests.length) }).run();
  expect(sizes).toEqual([6]);
});

test("no more rollouts run at a time than allowed, and the order stays", async () => {
  let running = 0;
  let most = 0;
  const workflow: Workflow<Row> = async (task) => {
    most = Math.max(most, ++running);
    await sleep(task.id === "one" ? 10 : 1);
    running--;
    return 1;
  };
  const episodes = await setUp({ workflow }).run({ nParallelTasks: 2 });
  expect(most).toBe(2);
  expect(episodes.map((episode) => episode.id)).toEqual(["one:0", "one:1", "two:0", "two:1", "three:0", "three:1"]);
  // A reward without a model call is kept, with nothing to train on.
  expect(episodes[0]!.trajectories).toEqual([{ name: "agent", steps: [], reward: 1 }]);
});

test("a task that occurs twice gets more rollouts, not the same ones again", async () => {
  const episodes = await setUp({}).run({ tasks: tasksOf("one", "two", "one") });
  expect(episodes.map((episode) => episode.id)).toEqual(["one:0", "one:1", "two:0", "two:1", "one:2", "one:3"]);
});

test("each role is a trajectory, with steps in the order of the calls", async () => {
  const workflow: Workflow<Row> = async (_task, { model }) => {
    const judge = model.as("judge");
    const say = (content: string) => [{ role: "user", content }] as const;
    await Promise.all([model.chat(say("slow")), judge.chat(say("fast")), model.as("agent").chat(say("third"))]);
    await judge.chat(say("last"), { maxTokens: 2, temperature: 0, topP: 0.5, topK: 1, minP: 0, stop: ["x"] });
    return { reward: 1, correct: true, explanation: "fine", metrics: { turns: 4 }, rewards: { judge: null } };
  };
  const requests: SampleRequest[] = [];
  const reply: Script = async ([message]) => {
    if (message!.content === "slow") await sleep(5);
    return message!.content;
  };
  const { run } = setUp({ workflow, reply, watch: (more) => requests.push(...more) });
  const [episode] = await run({ tasks: tasksOf("one"), n: 1 });
  expect(episode!.trajectories.map(({ name, reward, steps }) => [name, reward, steps.map(({ text }) => text)])).toEqual(
    [
      ["agent", 1, ["slow", "third"]],
      ["judge", null, ["fast", "la"]],
    ],
  );
  expect(episode).toMatchObject({ correct: true, explanation: "fine", metrics: { turns: 4 }, termination: "env_done" });
  expect(requests.at(-1)!.params).toMatchObject({
    ...{ maxTokens: 2, temperature: 0, topP: 0.5, topK: 1, minP: 0, stopStrings: ["x"] },
    seed: rolloutSeed(1, 2)({ taskId: "one", rollout: 0, attempt: 0, turn: 3 }),
  });
});

test("changing a reply in a workflow does not change what is trained on", async () => {
  const workflow: Workflow<Row> = async (_task, { model }) => {
    (await model.chat([{ role: "user", content: "abc" }])).tokens.fill(0);
    return 1;
  };
  const [episode] = await setUp({ workflow }).run();
  expect(episode!.trajectories[0]!.steps[0]!.tokens[0]).not.toBe(0);
});

describe("limits", () => {
  // A prompt is the word and three marks; a reply is the word and its end.
  test.each<[Partial<SamplingClientOptions["limits"]>, Episode["termination"], string | undefined]>([
    [{ maxPromptLength: 6 }, "env_done", "two"],
    [{ maxPromptLength: 5 }, "max_prompt_length_exceeded", undefined],
    [{ maxResponseLength: 4 }, "env_done", "two"],
    [{ maxResponseLength: 3 }, "max_response_length_exceeded", "two"],
    [{ maxResponseLength: 2 }, "max_response_length_exceeded", "tw"],
    [{ maxLength: 10 }, "env_done", "two"],
    [{ maxLength: 8 }, "max_response_length_exceeded", "tw"],
    [{ maxLength: 6 }, "max_prompt_length_exceeded", undefined],
  ])("%j: %s", async (limits, termination, text) => {
    const [episode] = await setUp({ limits }).run({ tasks: tasksOf("two"), n: 1, raiseOnError: true });
    expect(episode).toMatchObject({ termination, retries: 0 });
    expect(episode!.failure).toBeUndefined();
    expect(episode!.trajectories[0]?.steps[0]?.text).toBe(text);
    expect(rewards([episode!])).toEqual([text === undefined ? [] : [Number(text === "two")]]);
  });
});

const faults = [
  "throws",
  "stalls",
  "drops",
  "breaks off",
  "aborts",
  "rubbish",
  "answers others",
  "answers twice",
] as const;

/** Answers most calls and misbehaves at random for the others, for one request or for a whole call. */
function chaoticSampler(done: Record<string, number>): {
  sampler: SampleSource;
  chat: ReturnType<typeof scriptedSampler>["chat"];
} {
  const { sampler, chat } = scriptedSampler((messages) => `${messages.length}`);
  const random = uniforms(11);
  async function* sample(requests: readonly SampleRequest[], options: SampleOptions = {}): AsyncGenerator<Sample> {
    const fault = random() < 0.3 ? faults[Math.floor(random() * faults.length)]! : "nothing";
    done[fault] = (done[fault] ?? 0) + 1;
    if (fault === "throws") throw new Error("chaos: out of memory");
    const half = Math.floor(requests.length * random());
    for await (const answer of sampler.sample(requests, options)) {
      const spoilt = answer.request >= half;
      if (fault === "rubbish" && spoilt) yield { ...answer, logprobs: new Float32Array(answer.tokens.length + 1) };
      else if (fault === "answers others" && spoilt) yield { ...answer, request: requests.length + 3 };
      else if (fault === "answers twice" && spoilt) {
        yield answer;
        yield answer;
      } else if (fault === "aborts" && spoilt) yield { ...answer, stopReason: "aborted" };
      else if (fault === "drops" && spoilt) continue;
      else if (fault === "breaks off" && spoilt) throw new Error("chaos: connection reset");
      else if (fault === "stalls" && spoilt) await new Promise(() => {});
      else yield answer;
    }
  }
  return { sampler: { sample }, chat };
}

test("1,000 episodes on an engine that fails, stalls, drops and answers rubbish: all end, all are counted, each with its cause", async () => {
  const done: Record<string, number> = {};
  const client = createSamplingClient({
    ...chaoticSampler(done),
    defaults: ownDistribution,
    limits: { maxPromptLength: 1000, maxResponseLength: 100 },
    seedFor: rolloutSeed(0),
    flushMs: 2,
  });
  const random = uniforms(3);
  /** By rollout: the attempts begun, how each ended as its own code saw it, and what was not torn down. */
  const begun = new Map<string, number>();
  let standing = 0;
  let threw = 0;
  const workflow: Workflow<number> = async (task, { model, stage, tearDown, rollout, attempt }) => {
    const id = `${task.id}:${rollout}`;
    expect(begun.get(id) ?? 0).toBe(attempt);
    begun.set(id, attempt + 1);
    stage("set-up");
    standing++;
    tearDown(() => {
      standing--;
    });
    await null;
    if (random() < 0.01) {
      threw++;
      throw new Error("chaos: no room");
    }
    stage("play");
    const messages = [{ role: "user" as const, content: task.id }];
    for (let turn = 0; turn < 3; turn++) {
      const reply = await model.chat(messages);
      messages.push(reply.message as never, { role: "user", content: "go on" });
    }
    stage("reward");
    return { reward: 1, correct: true };
  };
  const tasks: Task<number>[] = Array.from({ length: 250 }, (_, row) => ({ id: `t${row}`, row, origin: `row ${row}` }));
  const retries: { boundary: string }[] = [];
  const told: string[] = [];
  const episodes = await runRollouts({
    ...{ tasks, n: 4, workflow, client, purpose: "train" as const, nParallelTasks: 40 },
    ...{ retryLimit: 2, timeoutSeconds: 0.5, raiseOnError: false },
    onRetry: ({ failure }) => retries.push(failure),
    onEpisode: ({ id }) => told.push(id),
  });

  // Every fault occurred, and everything was torn down.
  expect(Object.keys(done).sort()).toEqual([...faults, "nothing"].sort());
  expect([client.waitingFor(), standing]).toEqual([[], 0]);
  // All rollouts are there once, in order.
  const ids = tasks.flatMap(({ id }) => [0, 1, 2, 3].map((rollout) => `${id}:${rollout}`));
  expect(episodes.map(({ id }) => id)).toEqual(ids);
  expect([...told].sort()).toEqual([...ids].sort());
  // Each attempt is counted once: as a retry, or as the attempt of its episode.
  for (const { id, retries: failed } of episodes) expect(begun.get(id)).toBe(failed + 1);
  expect(retries.length).toBe(episodes.reduce((sum, episode) => sum + episode.retries, 0));
  // Failures in the set-up were thrown there; all others came from the engine or from its silence.
  const failures = [...retries, ...episodes.flatMap(({ failure }) => failure ?? [])];
  expect(failures.filter(({ boundary }) => boundary === "set_up").length).toBe(threw);
  expect(threw).toBeGreaterThan(0);
  expect(new Set(failures.map(({ boundary }) => boundary))).toEqual(new Set(["engine", "set_up", "timeout"]));
  for (const episode of episodes) checkEpisode(episode);
  expect(episodes.filter(({ termination }) => termination === "env_done").length).toBeGreaterThan(300);
});

function checkEpisode({ failure, termination, trajectories, correct, retries }: Episode): void {
  const rewards = trajectories.map(({ reward }) => reward);
  if (failure) {
    expect(rewards.every((reward) => reward === null)).toBe(true);
    expect(correct).toBeNull();
    expect(termination).toBe(failure.boundary === "timeout" ? "timeout" : "error");
    if (failure.boundary !== "timeout") expect(retries).toBe(2);
    return;
  }
  expect([termination, rewards]).toEqual(["env_done", [1]]);
  // Exactly the three turns of the last attempt.
  expect(trajectories[0]!.steps.map(({ text }) => text)).toEqual(["1", "3", "5"]);
}
