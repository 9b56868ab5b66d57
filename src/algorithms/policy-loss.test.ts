import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { offsetsOf, totalsOf } from "../trajectories/batch.ts";
import type { TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import { sequenceLoss, tokenLoss } from "./custom-loss.ts";
import { type KlEstimatorName, klEstimators } from "./kl.ts";
import type { PolicyLossOptions } from "./policy-loss.ts";
import { informativeSequences, lossPart, policyLoss, tokenWeights } from "./policy-loss.ts";
import { definitionOf, policyLosses } from "./policy-losses.ts";
import type { LossValue } from "./types.ts";

const base: PolicyLossOptions = {
  lossFn: "ppo",
  epsClip: 0.2,
  epsClipHigh: null,
  aggMode: "token-mean",
  constants: { cpgd_drift_coef: 0.3, clip_cov_ratio: 0.3, clip_cov_lb: 0, kl_cov_ratio: 0.3 },
};
const kl = { weight: 0.1, estimator: "k3" } as const;
const modes = Object.keys(tokenWeights) as (keyof typeof tokenWeights)[];
const losses = Object.keys(policyLosses) as (keyof typeof policyLosses)[];
const coupled = new Set<unknown>(["clip_cov", "kl_cov"]);

interface Token {
  logprob: number;
  logRatio: number;
  toReference: number;
  entropy: number;
}
/** Values at a distance from every kink of every loss, so that a central difference is a derivative. */
const token: fc.Arbitrary<Token> = fc.record({
  logprob: fc.constantFrom(-0.25, -1, -2.5),
  logRatio: fc.constantFrom(-0.6, -0.1, 0.05, 0.15, 0.4, 1.3),
  toReference: fc.constantFrom(-1.5, -0.4, 0.3, 1),
  entropy: fc.constantFrom(0.1, 0.7, 2),
});
const row = fc.record({
  advantage: fc.constantFrom(-2, -0.5, 0, 0.75, 1.5),
  tokens: fc.array(token, { maxLength: 4 }),
});
const rows = fc.array(row, { minLength: 1, maxLength: 5 });

/** Losses also accept float64 values, whose precision central differences need. */
const floats = (values: Float64Array) => values as unknown as Float32Array;

function make(drawn: readonly { advantage: number; tokens: readonly Token[] }[]) {
  const offsets = offsetsOf(drawn.map(({ tokens }) => tokens.length));
  const flat = drawn.flatMap(({ tokens }) => tokens);
  const batch: TrainingBatch = {
    sequences: drawn.map(({ tokens }) => ({
      tokens: new Int32Array(tokens.length + 1),
      trained: new Uint8Array(tokens.length).fill(1),
    })),
    offsets,
    advantages: Float32Array.from(drawn.flatMap(({ advantage, tokens }) => tokens.map(() => advantage))),
    samplerLogprobs: Float32Array.from(flat, ({ logprob }) => logprob),
    oldLogprobs: Float32Array.from(flat, ({ logprob, logRatio }) => logprob - logRatio),
    referenceLogprobs: Float32Array.from(flat, ({ logprob, toReference }) => logprob - toReference),
    groups: Int32Array.from(drawn.keys()),
    roles: drawn.map((_, index) => ["solver", "judge", "critic"][index % 3]!),
    totals: totalsOf(offsets),
  };
  const outputs: TokenOutputs = {
    offsets,
    logprobs: floats(Float64Array.from(batch.samplerLogprobs)),
    entropy: floats(Float64Array.from(flat, ({ entropy }) => entropy)),
  };
  return { batch, outputs };
}

const all = (batch: TrainingBatch) => Int32Array.from(batch.sequences.keys());

function outputsOf(outputs: TokenOutputs, indices: readonly number[]): TokenOutputs {
  const pick = (values: Float32Array) =>
    floats(
      Float64Array.from(
        indices.flatMap((index) => [...values.subarray(outputs.offsets[index]!, outputs.offsets[index + 1]!)]),
      ),
    );
  return {
    offsets: offsetsOf(indices.map((index) => outputs.offsets[index + 1]! - outputs.offsets[index]!)),
    logprobs: pick(outputs.logprobs),
    entropy: pick(outputs.entropy!),
  };
}

/** The likelihood of a whole reply, as a user may write it. */
const wholeReply = sequenceLoss(
  "whole_reply",
  ["advantage", "referenceLogprob"],
  ({ logprob, advantage, referenceLogprob }) => {
    const margin = logprob.reduce((sum, value, token) => sum + value - referenceLogprob[token]!, 0);
    return {
      losses: logprob.map(() => (-advantage[0]! * margin ** 2) / logprob.length),
      slopes: logprob.map(() => -2 * advantage[0]! * margin),
    };
  },
);
const reinforce = tokenLoss(
  "own_reinforce",
  ["advantage", "entropy", "samplerLogprob", "oldLogprob", "logRatio"],
  (token) => ({
    loss:
      -token.advantage * token.logprob * token.entropy - token.samplerLogprob + token.oldLogprob - 0 * token.logRatio,
    slope: -token.advantage * token.entropy,
  }),
);

const combinations: [string, PolicyLossOptions][] = [
  ...losses
    .filter((lossFn) => !coupled.has(lossFn))
    .flatMap((lossFn) => modes.map((aggMode) => ({ ...base, lossFn, aggMode }))),
  ...losses.map((lossFn) => ({ ...base, lossFn, aggMode: null })),
  { ...base, lossFn: "gspo" as const, constants: { gspo_gradient: "sequence" as const } },
  { ...base, lossFn: "ppo" as const, lossFnByRole: { judge: "gspo" as const, critic: wholeReply } },
  ...(["ppo", "gmpo", "gspo"] as const).map((lossFn) => ({
    ...base,
    lossFn,
    highEntropyRatio: 0.5,
    kl,
    entropyCoeff: 0.01,
  })),
  { ...base, lossFn: reinforce },
  { ...base, lossFn: wholeReply, aggMode: "seq-mean-token-sum" as const },
  ...(Object.keys(klEstimators) as KlEstimatorName[]).map((estimator) => ({ ...base, kl: { weight: 0.3, estimator } })),
  { ...base, constants: { clip_ratio_c: 2 }, epsClipHigh: 0.28 },
  { ...base, aggMode: "seq-mean-token-sum-norm" as const, lossScale: 7, entropyCoeff: 0.05, kl },
].map((options: PolicyLossOptions, index) => {
  const name = typeof options.lossFn === "string" ? options.lossFn : options.lossFn.name;
  return [`${index} ${name} ${options.aggMode} ${options.kl?.estimator}`, options];
});

describe.each(combinations)("%s", (_, options) => {
  test("the gradient is the central difference of the loss", () => {
    const step = 1e-5;
    const detached = typeof options.lossFn === "string" && definitionOf(options.lossFn).detached;
    fc.assert(
      fc.property(rows, (drawn) => {
        // A tiny change of a value may change the marked tokens; losses.test.ts tests the marks.
        if (coupled.has(options.lossFn)) return;
        const { batch, outputs } = make(drawn);
        const { gradient } = policyLoss(batch, options).evaluate(outputs, all(batch));
        const shifted = (values: Float32Array, index: number, shift: number) => {
          const copy = Float64Array.from(values);
          copy[index] = copy[index]! + shift;
          return floats(copy);
        };
        const slopeOf = (key: "logprobs" | "entropy", index: number) => {
          const at = (shift: number) => {
            const oldLogprobs = detached ? shifted(batch.oldLogprobs!, index, shift) : batch.oldLogprobs!;
            const moved = { ...outputs, [key]: shifted(outputs[key]!, index, shift) };
            return policyLoss({ ...batch, oldLogprobs }, options).evaluate(moved, all(batch)).loss;
          };
          return (at(step) - at(-step)) / (2 * step);
        };
        gradient.logprobs.forEach((slope, index) => {
          expect(slope).toBeCloseTo(slopeOf("logprobs", index), 6);
        });
        expect(gradient.entropy !== undefined).toBe((options.entropyCoeff ?? 0) !== 0);
        if ((options.highEntropyRatio ?? 1) < 1) return;
        gradient.entropy?.forEach((slope, index) => {
          expect(slope).toBeCloseTo(slopeOf("entropy", index), 6);
        });
      }),
      { numRuns: 15 },
    );
  });

  test("any parts of a batch add up to the batch, also without the sequences that carry no signal", () => {
    fc.assert(
      fc.property(rows, fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 5, maxLength: 5 }), (drawn, parts) => {
        const { batch, outputs } = make(drawn);
        const whole = policyLoss(batch, options).evaluate(outputs, all(batch));
        const kept = informativeSequences(batch, options);
        const selected = policyLoss(lossPart(batch, options), options);
        // A loss that needs the whole batch is evaluated on it at once.
        const split = coupled.has(options.lossFn) ? parts.map(() => 0) : parts;
        const gradient = new Float64Array(outputs.logprobs.length);
        const values = (split === parts ? [0, 1, 2] : [0]).map((part) => {
          const positions = [...kept.keys()].filter((position) => split[position] === part);
          const indices = positions.map((position) => kept[position]!);
          const value = selected.evaluate(outputsOf(outputs, indices), Int32Array.from(positions));
          let at = 0;
          for (const index of indices) {
            for (let i = batch.offsets[index]!; i < batch.offsets[index + 1]!; i++) {
              gradient[i] = value.gradient.logprobs[at++]!;
            }
          }
          return value;
        });
        expect(values.reduce((sum, value) => sum + value.loss, 0)).toBeCloseTo(whole.loss, 9);
        whole.gradient.logprobs.forEach((slope, index) => {
          expect(gradient[index]).toBeCloseTo(slope, 9);
        });
        if (kept.length === 0) return;
        const reported = report(values);
        for (const [name, value] of Object.entries(report([whole]))) {
          // ppo_kl covers only the evaluated tokens; the other metrics cover the whole batch.
          if (name !== "actor/ppo_kl") expect(reported[name]).toBeCloseTo(value, 9);
        }
      }),
      { numRuns: 20 },
    );
  });
});

function report(values: readonly LossValue[]): Record<string, number> {
  const total: Record<string, { sum: number; count: number }> = {};
  for (const { metrics } of values) {
    for (const [name, { sum, count }] of Object.entries(metrics)) {
      const before = total[name] ?? { sum: 0, count: 0 };
      total[name] = { sum: before.sum + sum, count: before.count + count };
    }
  }
  return Object.fromEntries(Object.entries(total).map(([name, { sum, count }]) => [name, sum / count]));
}

const two = [
  { advantage: 1, tokens: [{ logprob: -1, logRatio: 0.4, toReference: 0.3, entropy: 1 }] },
  { advantage: -1, tokens: [-0.6, 0.05].map((logRatio) => ({ logprob: -1, logRatio, toReference: 0, entropy: 1 })) },
];

test("without old log-probabilities the ratio is 1 and the gradient of a token is -w A", () => {
  const { batch, outputs } = make(two);
  const { oldLogprobs: _, ...current } = batch;
  for (const lossFn of losses) {
    const { ratio, slopeAtOne } = definitionOf(lossFn);
    if (ratio === "none" && slopeAtOne === undefined) continue;
    const constants = { clip_cov_lb: 5 };
    const value = policyLoss(current, { ...base, lossFn, constants }).evaluate(outputs, all(batch));
    [-1 / 3, 1 / 3, 1 / 3].forEach((slope, index) => {
      expect(value.gradient.logprobs[index]).toBeCloseTo(slope, 7);
    });
    expect(report([value])).toMatchObject({ "actor/pg_clipfrac": 0 });
  }
});

test("the metrics have verl's names and values", () => {
  const { batch, outputs } = make(two);
  const options = {
    ...base,
    constants: { clip_ratio_c: 3 },
    kl: { weight: 0.5, estimator: "k1" as const },
    entropyCoeff: 0.1,
  };
  const value = policyLoss(batch, options).evaluate(outputs, all(batch));
  const metrics = report([value]);
  expect(metrics["actor/pg_loss"]).toBeCloseTo((-1.2 + 0.8 + Math.exp(0.05)) / 3);
  expect(metrics["actor/pg_clipfrac"]).toBeCloseTo(2 / 3);
  expect(metrics["actor/pg_clipfrac_lower"]).toBe(0);
  expect(metrics["actor/ppo_kl"]).toBeCloseTo(0.15 / 3);
  expect(metrics["actor/kl_loss"]).toBeCloseTo(0.1);
  expect(metrics["actor/entropy_loss"]).toBeCloseTo(1);
  expect(value.loss).toBeCloseTo(metrics["actor/pg_loss"]! + 0.5 * 0.1 - 0.1);
});

test.each(modes)("an empty batch and empty sequences give 0 under %s, never NaN", (aggMode) => {
  for (const drawn of [[], [{ advantage: 1, tokens: [] }]]) {
    const { batch, outputs } = make(drawn);
    const value = policyLoss(batch, { ...base, aggMode, kl, entropyCoeff: 0.1 }).evaluate(outputs, all(batch));
    expect(value.loss).toBe(0);
    expect(value.metrics).toEqual({});
  }
});

test("sequences without advantage or without tokens are left out, unless another term trains them", () => {
  const { batch } = make([{ advantage: 0, tokens: two[0]!.tokens }, ...two, { advantage: 1, tokens: [] }]);
  expect([...informativeSequences(batch, base)]).toEqual([1, 2]);
  for (const more of [{ kl }, { entropyCoeff: 0.1 }, { lossFn: "dro" }, { lossFn: "kl_cov" }, { lossFn: "cpgd" }]) {
    expect([...informativeSequences(batch, { ...base, ...(more as object) })]).toEqual([0, 1, 2]);
  }
});

test("a KL term without a reference, and outputs of other sequences, are errors", () => {
  const { batch, outputs } = make(two);
  const { referenceLogprobs: _, ...bare } = batch;
  expect(() => policyLoss(bare, { ...base, kl })).toThrow(/reference/);
  expect(() => policyLoss(batch, base).evaluate(outputs, Int32Array.of(1, 0))).toThrow(
    /1 outputs for sequence 1, which has 2/,
  );
});
