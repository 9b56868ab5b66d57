import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { offsetsOf, selectSequences, totalsOf } from "../trajectories/batch.ts";
import type { TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import { tokenWeights } from "./aggregation.ts";
import { klEstimators } from "./kl.ts";
import { informativeSequences, type PolicyLossOptions, policyLoss, tokenLosses } from "./policy-loss.ts";
import type { LossValue } from "./types.ts";

const base: PolicyLossOptions = {
  lossFn: "ppo",
  epsClip: 0.2,
  epsClipHigh: null,
  aggMode: "token-mean",
  klBeta: 0,
  klEstimator: "k3",
};
const modes = Object.keys(tokenWeights) as (keyof typeof tokenWeights)[];
const losses = Object.keys(tokenLosses) as (keyof typeof tokenLosses)[];
const estimators = Object.keys(klEstimators) as (keyof typeof klEstimators)[];

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
    roles: drawn.map(() => "solver"),
    totals: totalsOf(offsets),
  };
  const outputs: TokenOutputs = {
    offsets,
    logprobs: batch.samplerLogprobs.slice(),
    entropy: Float32Array.from(flat, ({ entropy }) => entropy),
  };
  return { batch, outputs };
}

const all = (batch: TrainingBatch) => Int32Array.from(batch.sequences.keys());

function outputsOf(outputs: TokenOutputs, indices: readonly number[]): TokenOutputs {
  const pick = (values: Float32Array) =>
    Float32Array.from(
      indices.flatMap((index) => [...values.subarray(outputs.offsets[index]!, outputs.offsets[index + 1]!)]),
    );
  return {
    offsets: offsetsOf(indices.map((index) => outputs.offsets[index + 1]! - outputs.offsets[index]!)),
    logprobs: pick(outputs.logprobs),
    entropy: pick(outputs.entropy!),
  };
}

const combinations: [string, PolicyLossOptions][] = [
  ...losses.flatMap((lossFn) => modes.map((aggMode) => ({ ...base, lossFn, aggMode }))),
  ...estimators.map((klEstimator) => ({ ...base, klEstimator, klBeta: 0.3 })),
  { ...base, dualClip: 2, epsClipHigh: 0.28 },
  { ...base, aggMode: "seq-mean-token-sum-norm" as const, lossScale: 7, entropyCoeff: 0.05, klBeta: 0.1 },
].map((options) => [`${options.lossFn} ${options.aggMode} ${JSON.stringify(options).slice(20)}`, options]);

describe.each(combinations)("%s", (_, options) => {
  test("the gradient is the central difference of the loss", () => {
    const step = 2 ** -9;
    fc.assert(
      fc.property(rows, (drawn) => {
        const { batch, outputs } = make(drawn);
        const loss = policyLoss(batch, options);
        const { gradient } = loss.evaluate(outputs, all(batch));
        for (const key of ["logprobs", "entropy"] as const) {
          gradient[key]?.forEach((slope, index) => {
            const at = (shift: number) => {
              const values = outputs[key]!.slice();
              values[index] = values[index]! + shift;
              return loss.evaluate({ ...outputs, [key]: values }, all(batch)).loss;
            };
            expect(slope).toBeCloseTo((at(step) - at(-step)) / (2 * step), 3);
          });
        }
        expect(gradient.entropy !== undefined).toBe(loss.outputs.entropy === true);
      }),
      { numRuns: 20 },
    );
  });

  test("any parts of a batch add up to the batch, also without the sequences that carry no signal", () => {
    fc.assert(
      fc.property(rows, fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 5, maxLength: 5 }), (drawn, parts) => {
        const { batch, outputs } = make(drawn);
        const whole = policyLoss(batch, options).evaluate(outputs, all(batch));
        const kept = informativeSequences(batch, options);
        const selection = selectSequences(batch, kept);
        const selected = policyLoss(selection, options);
        const gradient = new Float32Array(outputs.logprobs.length);
        const values = [0, 1, 2].map((part) => {
          const positions = [...kept.keys()].filter((position) => parts[position] === part);
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
        for (const [name, figure] of Object.entries(report([whole]))) {
          // The mean log-ratio is over what was evaluated; the others are the batch's whatever was left out.
          if (name !== "actor/ppo_kl") expect(reported[name]).toBeCloseTo(figure, 9);
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
    const value = policyLoss(current, { ...base, lossFn }).evaluate(outputs, all(batch));
    expect([...value.gradient.logprobs]).toEqual([-1 / 3, 1 / 3, 1 / 3].map(Math.fround));
    expect(value.loss).toBeCloseTo(1 / 3);
    expect(report([value])).toMatchObject({ "actor/pg_clipfrac": 0 });
  }
});

test("the metrics are verl's", () => {
  const { batch, outputs } = make(two);
  const options = { ...base, dualClip: 3, klBeta: 0.5, klEstimator: "k1" as const, entropyCoeff: 0.1 };
  const value = policyLoss(batch, options).evaluate(outputs, all(batch));
  const figures = report([value]);
  expect(figures["actor/pg_loss"]).toBeCloseTo((-1.2 + 0.8 + Math.exp(0.05)) / 3);
  expect(figures["actor/pg_clipfrac"]).toBeCloseTo(2 / 3);
  expect(figures["actor/pg_clipfrac_lower"]).toBe(0);
  expect(figures["actor/ppo_kl"]).toBeCloseTo(0.15 / 3);
  expect(figures["actor/kl_loss"]).toBeCloseTo(0.1);
  expect(figures["actor/entropy_loss"]).toBeCloseTo(1);
  expect(value.loss).toBeCloseTo(figures["actor/pg_loss"]! + 0.5 * 0.1 - 0.1);
});

test.each(modes)("an empty batch and empty sequences give 0 under %s, never NaN", (aggMode) => {
  for (const drawn of [[], [{ advantage: 1, tokens: [] }]]) {
    const { batch, outputs } = make(drawn);
    const value = policyLoss(batch, { ...base, aggMode, klBeta: 0.1, entropyCoeff: 0.1 }).evaluate(outputs, all(batch));
    expect(value.loss).toBe(0);
    expect(value.metrics).toEqual({});
  }
});

test("sequences without advantage or without tokens are left out, unless another term trains them", () => {
  const { batch } = make([{ advantage: 0, tokens: two[0]!.tokens }, ...two, { advantage: 1, tokens: [] }]);
  expect([...informativeSequences(batch, base)]).toEqual([1, 2]);
  expect([...informativeSequences(batch, { klBeta: 0.1 })]).toEqual([0, 1, 2]);
  expect([...informativeSequences(batch, { klBeta: 0, entropyCoeff: 0.1 })]).toEqual([0, 1, 2]);
});

test("a KL term without a reference, and outputs of other sequences, are errors", () => {
  const { batch, outputs } = make(two);
  const { referenceLogprobs: _, ...bare } = batch;
  expect(() => policyLoss(bare, { ...base, klBeta: 0.1 })).toThrow(/reference/);
  expect(() => policyLoss(batch, base).evaluate(outputs, Int32Array.of(1, 0))).toThrow(/do not fit/);
});
