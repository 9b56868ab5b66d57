import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { markForClipCov, markForKlCov } from "./covariance.ts";
import { geometricMeans } from "./gmpo.ts";
import { highEntropyCount, largestPositions } from "./largest.ts";
import { type PolicyLossName, policyLosses } from "./policy-losses.ts";
import { type LossSettings, lossDefaults } from "./sequence-loss.ts";

const settings: LossSettings = { ...lossDefaults, dual: 1.8, cpgdDrift: 0.4, klCovCoef: 0.7 };
const names = Object.keys(policyLosses) as PolicyLossName[];

interface Token {
  logprob: number;
  logRatio: number;
  advantage: number;
  marked: number;
}

function evaluate(name: PolicyLossName, tokens: readonly Token[], own = settings) {
  const values = policyLosses[name].evaluate(
    {
      logprobs: Float64Array.from(tokens, ({ logprob }) => logprob),
      old: Float64Array.from(tokens, ({ logprob, logRatio }) => logprob - logRatio),
      advantages: Float64Array.from(tokens, ({ advantage }) => advantage),
      marked: Uint8Array.from(tokens, ({ marked }) => marked),
    },
    own,
  );
  const { slopes, slopesOfMean } = values;
  const mean = slopes.reduce((sum, slope) => sum + slope, 0) / tokens.length;
  return {
    ...values,
    loss: values.losses.reduce((sum, loss) => sum + loss, 0),
    slopes: slopesOfMean ? slopes.map(() => mean) : slopes,
  };
}

/** Far from every kink, so that a central difference is a derivative. */
const tokens = fc.array(
  fc.record<Token>({
    logprob: fc.double({ min: -6, max: -0.01, noNaN: true }),
    logRatio: fc.constantFrom(-2, -0.6, -0.1, 0.05, 0.15, 0.4, 1.3),
    advantage: fc.constantFrom(-2, -0.5, 0, 0.75, 1.5),
    marked: fc.constantFrom(0, 1),
  }),
  { minLength: 1, maxLength: 6 },
);

describe.each(names)("%s", (name) => {
  test("the slopes equal central differences, also if advantages differ within a sequence", () => {
    const step = 1e-6;
    fc.assert(
      fc.property(tokens, (drawn) => {
        // gspo's token gradient deliberately differs from the derivative, unless a sequence has one advantage.
        const row = evaluate(name, drawn, { ...settings, gspoGradient: "sequence" });
        drawn.forEach((token, index) => {
          const at = (shift: number) => {
            // cispo's ratio is detached, so it stays constant.
            const logRatio = token.logRatio + (name === "cispo" ? 0 : shift);
            const moved = { ...token, logprob: token.logprob + shift, logRatio };
            return evaluate(name, drawn.with(index, moved)).loss;
          };
          expect(row.slopes[index]).toBeCloseTo((at(step) - at(-step)) / (2 * step), 4);
        });
      }),
      { numRuns: 60 },
    );
  });

  test("extreme ratios and advantages give finite values", () => {
    const extreme = fc.array(
      fc.record({
        logprob: fc.constantFrom(-1e4, -800, -1, 0),
        logRatio: fc.constantFrom(-1e4, -800, -20, 0, 20, 800, 1e4),
        advantage: fc.constantFrom(-1e3, 0, 1e3),
        marked: fc.constantFrom(0, 1),
      }),
      { maxLength: 4 },
    );
    fc.assert(
      fc.property(extreme, fc.constantFrom(0.2, 1, 4), (drawn, epsilon) => {
        const row = evaluate(name, drawn, { ...settings, low: 1 - epsilon, high: 1 + epsilon });
        for (const value of [row.loss, ...row.slopes, row.kl]) expect(value).toSatisfy(Number.isFinite);
      }),
    );
  });
});

test("gspo's two gradients are equal if each sequence has one advantage", () => {
  const drawn = [0.1, 0.3, -0.1].map((logRatio) => ({ logprob: -1, logRatio, advantage: 0.7, marked: 0 }));
  const slopes = (gspoGradient: "token" | "sequence") =>
    [...evaluate("gspo", drawn, { ...settings, gspoGradient }).slopes].map((slope) => slope.toFixed(12));
  expect(slopes("token")).toEqual(slopes("sequence"));
});

test("NaN does not hang the selection", () => {
  const nan = Float64Array.of(Number.NaN, 1, Number.NaN);
  expect(largestPositions(nan, 2)).toHaveLength(2);
  expect(markForKlCov({ logprobs: nan, old: nan, advantages: nan }, { ...settings, klCovRatio: 0.5 })).toHaveLength(3);
});

test("the high-entropy selection keeps a share of each sequence, at least one token; on ties the first", () => {
  expect([0, 1, 3, 10].map((count) => highEntropyCount(count, 0.25))).toEqual([0, 1, 1, 2]);
  const entropies = Float64Array.of(0.5, 2, 0.5, 1, 0.5);
  expect([1, 2, 4, 5].map((kept) => [...largestPositions(entropies, kept)])).toEqual([
    [1],
    [1, 3],
    [0, 1, 2, 3],
    [0, 1, 2, 3, 4],
  ]);
  expect(largestPositions(entropies, 0)).toHaveLength(0);
});

const batchOf = (logprobs: number[], old: number[], advantages: number[]) => ({
  logprobs: Float64Array.from(logprobs),
  old: Float64Array.from(old),
  advantages: Float64Array.from(advantages),
});
const batch = batchOf([-3, -1, -0.1, -2], [-3, -1.1, -0.6, -1], [-1, 0.5, 1, -1.5]);

test("kl_cov marks the largest covariances, at most all tokens", () => {
  // A - mean = -0.75, 0.75, 1.25, -1.25; lp - mean = -1.475, 0.525, 1.425, -0.475
  expect([...markForKlCov(batch, { ...settings, klCovRatio: 0.5 })]).toEqual([1, 0, 1, 0]);
  expect([...markForKlCov(batch, settings)]).toEqual([0, 0, 1, 0]);
  expect([...markForKlCov(batch, { ...settings, klCovRatio: 7 })]).toEqual([1, 1, 1, 1]);
  const equal = batchOf([-1, -1], [-1, -1], [1, 1]);
  expect([...markForKlCov(equal, { ...settings, klCovRatio: 0.5 })]).toEqual([1, 0]);
  expect(markForKlCov(batchOf([], [], []), settings)).toHaveLength(0);
});

test("clip_cov draws unclipped tokens whose covariance is between the bounds; a seed repeats the draw", () => {
  const wide = { ...settings, clipCovRatio: 1, clipCovLow: 0, clipCovHigh: 5 };
  // The third is clipped above, the fourth below.
  expect([...markForClipCov(batch, wide)]).toEqual([1, 1, 0, 0]);
  const one = (seed: number) => [...markForClipCov(batch, { ...wide, clipCovRatio: 1e-4, seed })];
  expect(one(1)).toEqual(one(1));
  expect(new Set([...Array(20).keys()].map((seed) => one(seed).join(""))).size).toBe(2);
  expect(markForClipCov(batchOf([], [], []), settings)).toHaveLength(0);
});

test("all tokens of a sequence get the geometric mean of its weights", () => {
  const means = geometricMeans(Float32Array.of(4, 1, 0.5), Int32Array.of(0, 2, 2, 3));
  expect(means[0]).toBeCloseTo(2, 5);
  expect(means[1]).toBeCloseTo(2, 5);
  expect(means[2]).toBeCloseTo(0.5, 5);
});
