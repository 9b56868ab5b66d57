import { expect, test } from "vitest";
import { mean, percentile, spread, standardDeviation } from "./statistics.ts";

test("means, deviations, percentiles, spreads", () => {
  expect(mean([1, 2, 6])).toBe(3);
  expect(standardDeviation([1, 3])).toBe(1);
  expect(standardDeviation([1, 3], 1)).toBeCloseTo(Math.SQRT2);
  expect(standardDeviation([0.1, 0.1, 0.1])).toBe(0);
  expect(standardDeviation([5])).toBe(0);
  expect(standardDeviation([5], 1)).toBeNaN();
  expect(percentile([3, 1, 2], 50)).toBe(2);
  expect(percentile([0, 10], 90)).toBe(9);
  expect(percentile([7], 10)).toBe(7);
  expect(spread("x", [1, 3])).toEqual({ "x/mean": 2, "x/max": 3, "x/min": 1 });
  expect(spread("x", [])).toEqual({});
});
