/**
 * Ten thousand multi-turn episodes at the same time in one process, against an engine that answers at once: what the
 * rollout engine itself costs.
 *
 *   npm run bench -- rollout [--episodes 10000] [--turns 4]
 *
 * Prints episodes and model calls per second, memory per live episode, and how late the event loop was (a timer that is
 * due, a socket that is ready): its 50th, 99th and 100th percentile.
 */
import { monitorEventLoopDelay } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import type { Environment } from "../../src/agents/types.ts";
import { chatAgent, multiTurn } from "../../src/agents/workflows.ts";
import type { Sample, SampleOptions, SampleRequest, Sampler } from "../../src/backends/engine.ts";
import { formatBytes } from "../../src/base/files.ts";
import type { Task } from "../../src/data/dataset.ts";
import { runRollouts } from "../../src/rollout/rollouts.ts";
import { createSamplingClient, rolloutSeed } from "../../src/rollout/session.ts";
import { characterChat } from "../../src/testing/scripted.ts";

const { values: flags } = parseArgs({
  options: { episodes: { type: "string", default: "10000" }, turns: { type: "string", default: "4" } },
});
const perTask = 8;
/** Whole groups. */
const episodes = perTask * Math.ceil(Number(flags.episodes) / perTask);
const turns = Number(flags.turns);

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

/** All rollouts wait here once, so that memory is measured while all are alive; the wait is not timed. */
const waiting: (() => void)[] = [];
const base = memory();
let alive = 0;
let paused = 0;

async function measureAndGoOn(): Promise<void> {
  const start = performance.now();
  delay.disable();
  alive = memory() - base;
  // The answers arrive spread over time, like those of real environments.
  await sleep(20);
  delay.enable();
  paused = performance.now() - start;
  for (const [index, goOn] of waiting.entries()) {
    if (index % 100 === 99) await sleep(0);
    goOn();
  }
}

const delay = monitorEventLoopDelay({ resolution: 5 });

function counter(): Environment {
  let left = turns;
  return {
    reset: () => `There are ${left} turns to go. Answer with one word.`,
    async step() {
      if (left === 2) {
        await new Promise<void>((resolve) => {
          if (waiting.push(resolve) === episodes) void measureAndGoOn();
        });
      }
      left--;
      return { observation: `There are ${left} turns to go. Answer with one word.`, reward: 1, done: left === 0 };
    },
  };
}

const chat = characterChat();
const tokens = Int32Array.from([...chat.encode("onwards"), chat.eosId]);
const logprobs = new Float32Array(tokens.length).fill(-0.5);
/** Answers all calls at once, which is the worst case for the event loop. */
const sampler: Pick<Sampler, "sample"> = {
  async *sample(requests: readonly SampleRequest[], _options: SampleOptions = {}): AsyncGenerator<Sample> {
    for (let request = 0; request < requests.length; request++) {
      yield { request, tokens, logprobs, stopReason: "stop", policyVersion: 0 };
    }
  },
};

function memory(): number {
  collectGarbage();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}

const client = createSamplingClient({
  ...{ sampler, chat, defaults: { temperature: 1, topP: 1, topK: -1, minP: 0 } },
  limits: { maxPromptLength: 4096, maxResponseLength: 256 },
  seedFor: rolloutSeed(0),
});
const tasks: Task<number>[] = Array.from({ length: episodes / perTask }, (_, row) => ({
  id: `task/${row}`,
  row,
  origin: `row ${row}`,
}));
const workflow = multiTurn<number>({ environment: counter, agent: () => chatAgent({ system: "Be brief." }) });

/** The delay of an idle process on this machine, for comparison. */
const idle = monitorEventLoopDelay({ resolution: 5 });
idle.enable();
await sleep(2000);
idle.disable();
delay.enable();
const start = performance.now();
const ended = await runRollouts({
  ...{ tasks, n: perTask, workflow, client, purpose: "train" as const, nParallelTasks: episodes },
  ...{ retryLimit: 0, timeoutSeconds: 600, raiseOnError: true },
});
const seconds = (performance.now() - start - paused) / 1000;
await sleep(20);
delay.disable();

const calls = ended.reduce((sum, { trajectories }) => sum + trajectories[0]!.steps.length, 0);
if (ended.length !== episodes || calls !== episodes * turns)
  throw new Error(`${ended.length} episodes, ${calls} calls`);
console.log(`${episodes} episodes of ${turns} turns at the same time: ${seconds.toFixed(2)} s`);
console.log(`${Math.round(episodes / seconds)} episodes/s, ${Math.round(calls / seconds)} model calls/s`);
console.log(
  `${formatBytes(alive)} for ${episodes} live episodes, ${(alive / episodes / 1024).toFixed(1)} KiB each; peak ${formatBytes(process.resourceUsage().maxRSS * 1024)}`,
);
const late = (of: typeof delay) =>
  `${(of.percentile(50) / 1e6).toFixed(1)} ms (p50), ${(of.percentile(99) / 1e6).toFixed(1)} ms (p99), ${(of.max / 1e6).toFixed(1)} ms (most)`;
console.log(`event loop late by ${late(delay)}`);
console.log(`in an idle process just before: ${late(idle)}`);
