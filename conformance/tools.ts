/** Tools of the conformance checks: made-up token sequences, simple losses, comparisons. */

import assert from "node:assert/strict";
import type { Loss } from "../src/algorithms/types.ts";
import type {
  AdamParams,
  AdapterSpec,
  Capabilities,
  Engine,
  Learner,
  LearnerSpec,
  ModelInfo,
  Policy,
  Sample,
  SampleRequest,
  Sampler,
  SamplingParams,
} from "../src/backends/engine.ts";
import { plainParams } from "../src/backends/engine-parts.ts";
import { concatenate, uniforms } from "../src/base/values.ts";
import type { Sequence } from "../src/trajectories/types.ts";

export interface ConformanceHelpers {
  /** A path in a temporary folder that does not exist yet. */
  path(name: string): string;
  /** How closely this engine computes the same log-probability in two ways (nats); 1e-4 in single precision. */
  tolerance: number;
}

/** One property that any engine must have. Throws if it does not. */
export interface ConformanceCheck {
  name: string;
  /** The check does not apply to engines without these capabilities. */
  needs?: (capabilities: Capabilities) => boolean;
  check(engine: Engine, helpers: ConformanceHelpers): Promise<void>;
}

/** A sampler, and what requests must know about its model. */
export interface SamplerSubject {
  sampler: Sampler;
  model: Pick<ModelInfo, "vocabularySize" | "eosTokenIds">;
}

/** One property that any sampler must have, whether or not a learner comes with it. */
export interface SamplerCheck {
  name: string;
  needs?: (capabilities: Pick<Capabilities, "sampling">) => boolean;
  check(subject: SamplerSubject, helpers: Pick<ConformanceHelpers, "tolerance">): Promise<void>;
}

export const lora = (seed = 1): AdapterSpec => ({ kind: "lora", rank: 4, alpha: 8, targets: ["attn", "mlp"], seed });

/** Runs `use` with a new policy and closes it, also after an error. */
export async function withPolicy<T>(
  engine: Engine,
  adapter: AdapterSpec,
  use: (policy: Policy) => Promise<T>,
): Promise<T> {
  const policy = await engine.createPolicy({ adapter });
  try {
    return await use(policy);
  } finally {
    await policy.learner.close();
  }
}

/** Runs `use` with a new learner and closes it, also after an error. */
export async function withLearner<T>(
  engine: Engine,
  spec: LearnerSpec,
  use: (learner: Learner) => Promise<T>,
): Promise<T> {
  const learner = await engine.createLearner(spec);
  try {
    return await use(learner);
  } finally {
    await learner.close();
  }
}

/** Runs `use` with a policy whose adapter changes the outputs and whose weights are published. */
export async function withTrainedPolicy<T>(engine: Engine, use: (policy: Policy) => Promise<T>): Promise<T> {
  return withPolicy(engine, lora(), async (policy) => {
    const sequences = madeUpSequences(engine);
    for (const seed of [1, 2]) await step(policy.learner, sequences, madeUpWeights(numTrained(sequences), seed));
    await policy.sampler.load(await policy.learner.publish());
    return use(policy);
  });
}

/** `[length]` ids that every vocabulary has and that end no sequence. */
export function madeUpTokens(engine: Pick<SamplerSubject, "model">, seed: number, length: number): Int32Array {
  const next = uniforms(seed);
  const end = new Set(engine.model.eosTokenIds);
  const limit = Math.min(engine.model.vocabularySize, 1000);
  return Int32Array.from({ length }, () => {
    let token = 0;
    do token = Math.floor(next() * limit);
    while (end.has(token));
    return token;
  });
}

/** A sequence whose tokens from `prompt` on are trained. */
export function trainedAfter(prompt: Int32Array, reply: Int32Array): Sequence {
  const tokens = concatenate(Int32Array, [prompt, reply]);
  return {
    tokens,
    trained: Uint8Array.from({ length: tokens.length - 1 }, (_, index) => (index + 1 >= prompt.length ? 1 : 0)),
  };
}

/** Two groups with a shared prompt each, a sequence without a group, one with gaps in its mask, and two edge cases. */
export function madeUpSequences(engine: Engine, seed = 1): Sequence[] {
  const tokens = (offset: number, length: number) => madeUpTokens(engine, seed * 100 + offset, length);
  const [first, second] = [tokens(0, 7), tokens(1, 3)];
  const gaps = concatenate(Int32Array, [tokens(2, 5), tokens(3, 6)]);
  return [
    trainedAfter(first, tokens(4, 5)),
    trainedAfter(second, tokens(5, 1)),
    trainedAfter(first, tokens(6, 9)),
    { tokens: gaps, trained: Uint8Array.from([0, 1, 1, 0, 0, 0, 1, 0, 1, 1]) },
    trainedAfter(first, tokens(4, 5)),
    trainedAfter(second, tokens(7, 12)),
    { tokens: tokens(8, 4), trained: new Uint8Array(3) },
    trainedAfter(tokens(9, 1), tokens(10, 2)),
  ];
}

export const numTrained = (sequences: readonly Sequence[]): number =>
  sequences.reduce((total, { trained }) => total + trained.reduce((sum, flag) => sum + flag, 0), 0);

export interface Weights {
  logprobs: Float32Array;
  entropy?: Float32Array;
}

/** Weights in [-1, 1) for each output of a batch. */
export function madeUpWeights(count: number, seed: number, entropy = false): Weights {
  const next = uniforms(seed);
  const draw = () => Float32Array.from({ length: count }, () => 2 * next() - 1);
  return { logprobs: draw(), ...(entropy ? { entropy: draw() } : {}) };
}

export const scaled = (weights: Weights, factor: number): Weights => ({
  logprobs: weights.logprobs.map((value) => value * factor),
  ...(weights.entropy ? { entropy: weights.entropy.map((value) => value * factor) } : {}),
});

export const added = (a: Weights, b: Weights): Weights => ({
  logprobs: a.logprobs.map((value, index) => value + b.logprobs[index]!),
  ...(a.entropy && b.entropy ? { entropy: a.entropy.map((value, index) => value + b.entropy![index]!) } : {}),
});

/** The loss `sum(weights * outputs)`: its gradient is the weights, so it tests only the engine's pull-back. */
export function linearLoss(
  sequences: readonly Sequence[],
  weights: Weights,
  options: { coupled?: boolean } = {},
): Loss {
  const starts: number[] = [];
  let total = 0;
  for (const { trained } of sequences) {
    starts.push(total);
    total += trained.reduce((sum, flag) => sum + flag, 0);
  }
  return {
    name: "linear",
    outputs: weights.entropy ? { entropy: true } : {},
    ...(options.coupled ? { coupled: true as const } : {}),
    evaluate(outputs, members) {
      const pick = (all: Float32Array) =>
        Float32Array.from(
          Array.from(members).flatMap((member, index) => {
            const count = outputs.offsets[index + 1]! - outputs.offsets[index]!;
            return Array.from(all.subarray(starts[member]!, starts[member]! + count));
          }),
        );
      const gradient = {
        logprobs: pick(weights.logprobs),
        ...(weights.entropy ? { entropy: pick(weights.entropy) } : {}),
      };
      const loss =
        dot(gradient.logprobs, outputs.logprobs) + (gradient.entropy ? dot(gradient.entropy, outputs.entropy!) : 0);
      return { loss, gradient, metrics: { tokens: { sum: gradient.logprobs.length, count: 1 } } };
    },
  };
}

export const dot = (a: Float32Array, b: Float32Array): number =>
  a.reduce((total, value, index) => total + value * b[index]!, 0);

/** An ordinary step that visibly moves a tiny model and does not break a real one. */
export const ordinary: AdamParams = {
  learningRate: 5e-3,
  beta1: 0.9,
  beta2: 0.95,
  eps: 1e-8,
  weightDecay: 0,
  maxGradNorm: 0,
};

/** With an epsilon far above every gradient, Adam's first step is `rate * gradient`: plain descent. */
export const plainDescent = (rate: number): AdamParams => ({
  learningRate: rate * 1e8,
  beta1: 0,
  beta2: 0,
  eps: 1e8,
  weightDecay: 0,
  maxGradNorm: 0,
});

/** One step of a linear loss. */
export async function step(learner: Learner, sequences: readonly Sequence[], weights: Weights, adam = ordinary) {
  const { loss } = await learner.forwardBackward(sequences, linearLoss(sequences, weights));
  return { loss, ...(await learner.optimStep(adam)) };
}

export const params = (more: Partial<SamplingParams> = {}): SamplingParams => ({
  ...plainParams,
  maxTokens: 12,
  seed: 1,
  ...more,
});

/** Three prompts, four samples each, of different lengths, so that rows leave the batch one after another. */
export function groups(subject: Pick<SamplerSubject, "model">, more: Partial<SampleRequest> = {}): SampleRequest[] {
  return [5, 1, 17].flatMap((length, group) =>
    [3, 8, 14, 30].map((maxTokens, index) => ({
      prompt: madeUpTokens(subject, 50 + group, length),
      params: params({ maxTokens, seed: group * 10 + index }),
      ...more,
    })),
  );
}

/** All samples of a call, in the order of their requests. */
export async function sampleAll(
  { sampler }: Pick<Policy, "sampler">,
  requests: readonly SampleRequest[],
): Promise<Sample[]> {
  const samples: Sample[] = [];
  for await (const sample of sampler.sample(requests)) samples[sample.request] = sample;
  assert.equal(samples.filter(Boolean).length, requests.length, "every request is answered once");
  return samples;
}

export async function sampleOne(subject: Pick<Policy, "sampler">, request: SampleRequest): Promise<Sample> {
  const [sample] = await sampleAll(subject, [request]);
  assert.ok(sample);
  return sample;
}

function largestDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  assert.equal(a.length, b.length, "arrays of equal length");
  let largest = 0;
  for (let index = 0; index < a.length; index++) {
    const difference = Math.abs(a[index]! - b[index]!);
    // NaN must not pass for "no difference".
    largest = Number.isNaN(difference) ? Number.POSITIVE_INFINITY : Math.max(largest, difference);
  }
  return largest;
}

export function assertClose(a: ArrayLike<number>, b: ArrayLike<number>, tolerance: number, what: string): void {
  const difference = largestDifference(a, b);
  assert.ok(difference <= tolerance, `${what}: differ by ${difference}, more than ${tolerance}`);
}

export function assertDiffer(a: ArrayLike<number>, b: ArrayLike<number>, least: number, what: string): void {
  const difference = largestDifference(a, b);
  assert.ok(difference >= least, `${what}: differ by ${difference} only, less than ${least}`);
}

/** Relative closeness of two numbers. */
export function assertRatio(actual: number, expected: number, tolerance: number, what: string): void {
  const error = Math.abs(actual - expected) / Math.max(Math.abs(expected), 1e-12);
  assert.ok(error <= tolerance, `${what}: ${actual}, not ${expected} (off by ${(error * 100).toFixed(3)}%)`);
}
