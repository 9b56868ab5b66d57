/** Shared by the tests of rollouts: rows of one word, a model that echoes, and a run with ordinary settings. */
import { singleTurn } from "../agents/workflows.ts";
import type { SampleRequest } from "../backends/engine.ts";
import { textOf } from "../chat/messages.ts";
import type { Task } from "../data/dataset.ts";
import { type Script, scriptedSampler } from "../testing/scripted.ts";
import type { Episode } from "../trajectories/types.ts";
import { type RunRolloutsOptions, runRollouts } from "./rollouts.ts";
import type { SampleSource } from "./sample-queue.ts";
import { createSamplingClient, rolloutSeed } from "./session.ts";
import type { SamplingClientOptions } from "./types.ts";

export interface Row {
  word: string;
}
export const tasksOf = (...words: string[]): Task<Row>[] =>
  words.map((word, index) => ({ id: word, row: { word }, origin: `train.jsonl:${index + 1}` }));
const echo: Script = (messages) => textOf(messages.at(-1)!.content);

export type Settings = Partial<RunRolloutsOptions<Row>> & {
  reply?: Script;
  limits?: Partial<SamplingClientOptions["limits"]>;
  watch?: (requests: readonly SampleRequest[]) => void;
};

export function setUp({ reply = echo, limits, watch, ...options }: Settings) {
  const { sampler, chat } = scriptedSampler(reply);
  const watched: SampleSource = {
    sample(requests, sampleOptions) {
      watch?.(requests);
      return sampler.sample(requests, sampleOptions);
    },
  };
  const client = createSamplingClient({
    sampler: watched,
    chat,
    defaults: { temperature: 0.7, topP: 0.9, topK: 5, minP: 0.1 },
    limits: { maxPromptLength: 100, maxResponseLength: 100, ...limits },
    seedFor: rolloutSeed(1, 2),
  });
  const run = (more: Partial<RunRolloutsOptions<Row>> = {}) =>
    runRollouts<Row>({
      tasks: tasksOf("one", "two", "three"),
      n: 2,
      workflow: singleTurn({ prompt: (row) => row.word, reward: (row, reply) => Number(row.word === reply.text) }),
      client,
      purpose: "train",
      nParallelTasks: 64,
      retryLimit: 0,
      timeoutSeconds: 10,
      raiseOnError: false,
      ...options,
      ...more,
    });
  return { client, run };
}
export const rewards = (episodes: Episode[]) =>
  episodes.map((episode) => episode.trajectories.map(({ reward }) => reward));
