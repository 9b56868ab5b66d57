import { expect, test } from "vitest";
import type { Workflow } from "../agents/types.ts";
import type { Sample, SampleOptions, SampleRequest } from "../backends/engine.ts";
import { ownDistribution } from "../backends/sampling-params.ts";
import type { Task } from "../data/task.ts";
import { uniforms } from "../random.ts";
import { scriptedSampler } from "../testing/scripted-sampler.ts";
import type { Episode } from "../trajectories/types.ts";
import { runRollouts } from "./run-rollouts.ts";
import type { SampleSource } from "./session/sample-queue.ts";
import { createSamplingClient, rolloutSeed } from "./session/sampling-client.ts";

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
