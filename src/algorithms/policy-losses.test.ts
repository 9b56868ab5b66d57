import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { highEntropyCount, largestPositions } from "./loss-definition.ts";
import {
  clipCov,
  definitionOf,
  gmpo,
  klCov,
  lossByName,
  lossDefaults,
  lossNames,
  namedLosses,
  type PolicyLossName,
  policyLosses,
} from "./policy-losses.ts";

const settings = { ...lossDefaults, clip_ratio_c: 1.8, cpgd_drift_coef: 0.4, ppo_kl_coef: 0.7 };
const names = Object.keys(policyLosses) as PolicyLossName[];

interface Token {
  logprob: number;
  logRatio: number;
  advantage: number;
  marked: number;
}

function evaluate(name: PolicyLossName, tokens: readonly Token[], own = settings) {
  const values = definitionOf(name).evaluate(
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
        const row = evaluate(name, drawn, { ...settings, gspo_gradient: "sequence" });
        drawn.forEach((token, index) => {
          const at = (shift: number) => {
            const logRatio = token.logRatio + (definitionOf(name).detached ? 0 : shift);
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

test.each(namedLosses)("%s reads its constants, and no others", (_name, loss) => {
  const read = new Set<string>();
  const reading = new Proxy(settings, {
    get(target, name) {
      read.add(String(name));
      return Reflect.get(target, name);
    },
  });
  const marked = Uint8Array.of(1, 1, 1, 1);
  const shared = ["low", "high", "logRatioLimit", "seed"];
  loss.mark?.(batch, reading);
  loss.evaluate({ ...batch, marked }, reading);
  const { constants, ratioConstants = [] } = loss;
  expect([...read].filter((name) => !shared.includes(name)).sort()).toEqual(Object.keys(constants).sort());
  expect(Object.keys(constants)).toEqual(expect.arrayContaining([...ratioConstants]));
  if (loss.ratio !== "clipped") expect(read).not.toContain("low");
});

test("names of losses and of constants are unique", () => {
  expect(new Set(lossNames).size).toBe(lossNames.length);
  expect(lossNames.map(lossByName)).not.toContain(undefined);
  const constants = namedLosses.flatMap(([, loss]) => Object.keys(loss.constants));
  expect(new Set(constants).size).toBe(constants.length);
});

test("gspo's two gradients are equal if each sequence has one advantage", () => {
  const drawn = [0.1, 0.3, -0.1].map((logRatio) => ({ logprob: -1, logRatio, advantage: 0.7, marked: 0 }));
  const slopes = (gspo_gradient: "token" | "sequence") =>
    [...evaluate("gspo", drawn, { ...settings, gspo_gradient }).slopes].map((slope) => slope.toFixed(12));
  expect(slopes("token")).toEqual(slopes("sequence"));
});

test("NaN does not hang the selection", () => {
  const nan = Float64Array.of(Number.NaN, 1, Number.NaN);
  expect(largestPositions(nan, 2)).toHaveLength(2);
  expect(klCov.mark!({ logprobs: nan, old: nan, advantages: nan }, { ...settings, kl_cov_ratio: 0.5 })).toHaveLength(3);
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
  expect([...klCov.mark!(batch, { ...settings, kl_cov_ratio: 0.5 })]).toEqual([1, 0, 1, 0]);
  expect([...klCov.mark!(batch, settings)]).toEqual([0, 0, 1, 0]);
  expect([...klCov.mark!(batch, { ...settings, kl_cov_ratio: 7 })]).toEqual([1, 1, 1, 1]);
  const equal = batchOf([-1, -1], [-1, -1], [1, 1]);
  expect([...klCov.mark!(equal, { ...settings, kl_cov_ratio: 0.5 })]).toEqual([1, 0]);
  expect(klCov.mark!(batchOf([], [], []), settings)).toHaveLength(0);
});

test("clip_cov draws unclipped tokens whose covariance is between the bounds; a seed repeats the draw", () => {
  const wide = { ...settings, clip_cov_ratio: 1, clip_cov_lb: 0, clip_cov_ub: 5 };
  // The third is clipped above, the fourth below.
  expect([...clipCov.mark!(batch, wide)]).toEqual([1, 1, 0, 0]);
  const one = (seed: number) => [...clipCov.mark!(batch, { ...wide, clip_cov_ratio: 1e-4, seed })];
  expect(one(1)).toEqual(one(1));
  expect(new Set([...Array(20).keys()].map((seed) => one(seed).join(""))).size).toBe(2);
  expect(clipCov.mark!(batchOf([], [], []), settings)).toHaveLength(0);
});

test("all tokens of a sequence get the geometric mean of its weights", () => {
  const means = [[4, 1], [], [0.5]].map((weights) => [...gmpo.weightsOf!(Float32Array.from(weights))]);
  expect(means.map(({ length }) => length)).toEqual([2, 0, 1]);
  expect(means[0]![0]).toBeCloseTo(2, 5);
  expect(means[0]![1]).toBeCloseTo(2, 5);
  expect(means[2]![0]).toBeCloseTo(0.5, 5);
});

test("importance_sampling leaves out tokens whose probability fell by more than max_probability_drop", () => {
  const fell = { logprob: Math.log(0.3), logRatio: Math.log(0.3 / 0.6), advantage: 2, marked: 0 };
  const rose = { logprob: Math.log(0.6), logRatio: Math.log(0.6 / 0.3), advantage: 2, marked: 0 };
  const { slopes, clipped } = evaluate("importance_sampling", [fell, rose], { ...settings, max_probability_drop: 0.2 });
  expect(Array.from(slopes)).toEqual([0, expect.closeTo(-4, 6)]);
  expect(clipped).toBe(1);
  expect(evaluate("importance_sampling", [fell], settings).slopes[0]).toBeCloseTo(-1, 6);
});
