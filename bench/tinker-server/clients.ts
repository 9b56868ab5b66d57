/**
 * The clients of the load test, in their own process: samplers that send a request after each answer, and trainers
 * that sample, train, publish and save. Each is a complete client with its own session.
 * `node ... '{"url":"http://...","model":"tiny","samplers":64,"trainers":4,"seconds":60}'` prints a `Measured`.
 */

import type { Loss } from "../../src/algorithms/types.ts";
import type { Engine, SampleRequest } from "../../src/backends/engine.ts";
import { openTinkerEngine } from "../../src/backends/tinker/engine.ts";
import { deriveSeed, uniforms } from "../../src/base/values.ts";

export interface Load {
  url: string;
  model: string;
  samplers: number;
  trainers: number;
  seconds: number;
}

export interface Measured {
  /** Answers by route and status. */
  statuses: Record<string, number>;
  /** Requests that got no answer, and operations that failed. */
  errors: string[];
  samples: number;
  steps: number;
}

const load = JSON.parse(process.argv[2] ?? "") as Load;
const measured: Measured = { statuses: {}, errors: [], samples: 0, steps: 0 };
const end = performance.now() + 1000 * load.seconds;
const over = () => performance.now() > end;

async function counted(url: string, init: RequestInit): Promise<Response> {
  try {
    const response = await fetch(url, init);
    const key = `${url.split("/api/v1/")[1]?.replace(/sessions\/.*\//, "sessions/*/")} ${response.status}`;
    measured.statuses[key] = (measured.statuses[key] ?? 0) + 1;
    return response;
  } catch (error) {
    measured.errors.push(`${url}: ${error}`);
    throw error;
  }
}

async function client(work: (engine: Engine, random: () => number) => Promise<void>, seed: number): Promise<void> {
  try {
    const engine = await openTinkerEngine({
      ...{ baseUrl: load.url, apiKey: "tml-local", model: load.model, fetch: counted },
      tokenizerFolder: async () => "",
    });
    try {
      await work(engine, uniforms(deriveSeed(7, seed)));
    } finally {
      await engine.close();
    }
  } catch (error) {
    measured.errors.push(error instanceof Error ? `${error.message}` : String(error));
  }
}

const tokens = (random: () => number, length: number) =>
  Int32Array.from({ length }, () => 3 + Math.floor(random() * 250));

function request(prompt: Int32Array, random: () => number): SampleRequest {
  const stops = { stopIds: [], stopStrings: [], ignoreEos: true };
  const maxTokens = 4 + Math.floor(random() * 28);
  const seed = Math.floor(random() * 2 ** 40);
  return { prompt, params: { maxTokens, temperature: 1, topP: 1, topK: -1, minP: 0, seed, ...stops } };
}

async function sampler(engine: Engine, random: () => number): Promise<void> {
  const policy = await engine.createPolicy({ adapter: { kind: "none" } });
  while (!over()) {
    for await (const _ of policy.sampler.sample([request(tokens(random, 8 + Math.floor(random() * 200)), random)])) {
      measured.samples++;
    }
  }
}

/** The gradient of every token's log-probability is 1/100. */
const loss: Loss = {
  name: "linear",
  outputs: {},
  evaluate: ({ logprobs }) => ({
    loss: logprobs.reduce((sum, value) => sum + value, 0) / 100,
    gradient: { logprobs: new Float32Array(logprobs.length).fill(0.01) },
    metrics: {},
  }),
};

async function trainer(engine: Engine, random: () => number): Promise<void> {
  const adapter = { kind: "lora", rank: 8, alpha: 32, targets: ["attn", "mlp", "unembed"], seed: 1 } as const;
  const policy = await engine.createPolicy({ adapter });
  while (!over()) {
    const prompt = tokens(random, 32);
    const sequences = [];
    for await (const sample of policy.sampler.sample(Array.from({ length: 8 }, () => request(prompt, random)))) {
      const all = Int32Array.from([...prompt, ...sample.tokens]);
      sequences.push({
        tokens: all,
        trained: Uint8Array.from(all.subarray(1), (_, i) => (i + 1 < prompt.length ? 0 : 1)),
      });
    }
    await policy.learner.forwardBackward(sequences, loss);
    const adam = { learningRate: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 };
    await policy.learner.optimStep(adam);
    await policy.sampler.load(await policy.learner.publish());
    measured.steps++;
  }
}

const all = [
  ...Array.from({ length: load.samplers }, (_, index) => client(sampler, index)),
  ...Array.from({ length: load.trainers }, (_, index) => client(trainer, 1000 + index)),
];
await Promise.all(all);
console.log(JSON.stringify(measured));
process.exit(0);
