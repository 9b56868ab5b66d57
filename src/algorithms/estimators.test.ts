import fc from "fast-check";
import { expect, test } from "vitest";
import { type WhiteningOptions, whiteningOf, whitenings } from "./advantages.ts";
import { generalizedAdvantages, optimalTokenBaseline, returnsToGo } from "./estimators.ts";

const values = fc.array(fc.integer({ min: -8, max: 8 }), { maxLength: 8 });
const close = (got: ArrayLike<number>, wanted: ArrayLike<number>) => {
  expect(got).toHaveLength(wanted.length);
  Array.from(wanted).forEach((value, index) => {
    expect(got[index]).toBeCloseTo(value, 6);
  });
};

test("advantages are the returns if the critic predicts 0, and 0 if it predicts perfectly", () => {
  fc.assert(
    fc.property(values, fc.constantFrom(1, 0.9, 0), (rewards, gamma) => {
      const returns = returnsToGo(rewards, gamma);
      const nothing = rewards.map(() => 0);
      close(generalizedAdvantages(rewards, nothing, { gamma, lambda: 1 }).advantages, returns);
      close(generalizedAdvantages(rewards, Array.from(returns), { gamma, lambda: 0.5 }).advantages, nothing);
      close(generalizedAdvantages(rewards, Array.from(returns), { gamma, lambda: 0.5 }).returns, returns);
    }),
  );
});

function whiten(values: Float64Array, options: WhiteningOptions): Float64Array {
  const { center, factor } = whiteningOf(values, options);
  return values.map((value) => (value - center) * factor);
}

test("whitened values have mean 0 and deviation 1; a single value and equal values give 0, never NaN", () => {
  for (const options of Object.values(whitenings)) {
    const whitened = whiten(Float64Array.of(1, 2, 4, 7), options);
    expect(whitened.reduce((sum, value) => sum + value, 0)).toBeCloseTo(0, 6);
    expect(whitened.reduce((sum, value) => sum + value ** 2, 0)).toBeCloseTo(4 - options.ddof, 5);
    for (const few of [[], [3], [0.1, 0.1, 0.1], [1e30, 1e30]]) {
      close(
        whiten(Float64Array.from(few), options),
        few.map(() => 0),
      );
    }
    expect([...whiten(Float64Array.of(-1e100, 1e100, 3), options)].every(Number.isFinite)).toBe(true);
  }
});

test("the optimal baseline of identical replies is their mean return; a single reply keeps its returns", () => {
  const row = (reward: number, length: number) => ({
    returns: Float64Array.from({ length }, () => reward),
    logprobs: Float64Array.from({ length }, () => -1),
    sumPiSquared: Float64Array.from({ length }, () => 0.5),
  });
  const [first, second, none] = optimalTokenBaseline([row(1, 2), row(0, 3), row(5, 0)]);
  close(first!, [0.5, 0.5]);
  close(second!, [-0.5, -0.5, 0]);
  expect(none).toHaveLength(0);
  close(optimalTokenBaseline([row(2, 2)])[0]!, [2, 2]);
  expect(optimalTokenBaseline([])).toEqual([]);
});
