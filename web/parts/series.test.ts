import { expect, test } from "vitest";
import { cumulative, drawable, smooth } from "./series.ts";

test("smoothing starts at the first value, passes over gaps and NaN, and reaches a constant", () => {
  expect(smooth([4, 4, 4], 0.9)).toEqual([4, 4, 4].map((value) => expect.closeTo(value)));
  expect(smooth([0, 3], 0.5)).toEqual([0, 2]);
  expect(smooth([null, 1, Number.NaN, null, 1], 0.5)).toEqual([null, 1, Number.NaN, null, 1]);
  expect(smooth([1, 9], 0)).toEqual([1, 9]);
});

test("an axis of tokens adds them up; unknown numbers add nothing", () =>
  expect(cumulative([5, null, Number.NaN, 2])).toEqual([5, 5, 5, 7]));

test("a NaN of one curve does not empty the chart, and a logarithmic axis leaves out 0 and below", () => {
  const values = [1, 0, -1, null, Number.NaN, Number.POSITIVE_INFINITY, 0.1];
  expect(drawable(values, false)).toEqual([1, 0, -1, null, null, null, 0.1]);
  expect(drawable(values, true)).toEqual([1, null, null, null, null, null, 0.1]);
});
