import fc from "fast-check";
import { expect, test } from "vitest";
import { tokenRewards } from "../estimators/returns.ts";
import {
  clipSymmetric,
  noMoments,
  normalizeRewards,
  overlongPenalty,
  runningDeviation,
  withRewards,
} from "./change-rewards.ts";

const rewards = fc.array(fc.integer({ min: -9, max: 9 }), { maxLength: 8 });

test("moments of parts are the moments of the whole, and survive JSON", () => {
  fc.assert(
    fc.property(rewards, rewards, (first, second) => {
      const whole = withRewards(noMoments, [...first, ...second]);
      const saved = JSON.parse(JSON.stringify(withRewards(noMoments, first))) as typeof noMoments;
      const parts = withRewards(saved, second);
      expect(parts.count).toBe(whole.count);
      expect(parts.mean).toBeCloseTo(whole.mean, 9);
      expect(parts.squares).toBeCloseTo(whole.squares, 9);
    }),
  );
});

test("rewards are divided by the deviation of all rewards so far, never by 0", () => {
  expect(normalizeRewards(noMoments, [], { center: true }).rewards).toEqual([]);
  expect(normalizeRewards(noMoments, [3], { center: false }).rewards).toEqual([3]);
  expect(normalizeRewards(noMoments, [3, 3], { center: true }).rewards).toEqual([0, 0]);
  const { rewards: first, moments } = normalizeRewards(noMoments, [1, 3], { center: true });
  expect(first.map((reward) => reward * Math.SQRT2)).toEqual([-1, 1].map((value) => expect.closeTo(value)));
  expect(runningDeviation(moments)).toBeCloseTo(Math.SQRT2);
  const { rewards: second } = normalizeRewards(moments, [2], { center: true });
  expect(second).toEqual([0]);
});

test("values are clipped on both sides and the clipped share is returned; a bound of 0 is ignored", () => {
  expect(clipSymmetric([-2, -1, 0.5, 3], 1)).toEqual({ values: [-1, -1, 0.5, 1], fraction: 0.5 });
  expect(clipSymmetric([-2, 3], 0)).toEqual({ values: [-2, 3], fraction: 0 });
  expect(clipSymmetric([], 1)).toEqual({ values: [], fraction: 0 });
  expect(clipSymmetric(Float32Array.of(5), 2).values).toEqual(Float32Array.of(2));
});

test("the overlong penalty grows over the buffer, from 0 to its factor at the limit", () => {
  const penalty = { maxLength: 10, buffer: 4, factor: 2 };
  expect([0, 6, 7, 8, 10].map((length) => overlongPenalty(length, penalty))).toEqual([0, 0, -0.5, -1, -2]);
  expect(overlongPenalty(10, { ...penalty, buffer: 0 })).toBe(0);
});

test("a reply's reward is at its last token; the KL of each token is subtracted, and never added", () => {
  expect([...tokenRewards(3, 1, [0.5, 0, 2], 0.1)]).toEqual([-0.05, 0, 0.8]);
  expect([...tokenRewards(2, 1, [1, 1], -1)]).toEqual([0, 1]);
  expect([...tokenRewards(0, 1)]).toEqual([]);
});
