import fc from "fast-check";
import { expect, it } from "vitest";
import { histogram, histograms } from "./histogram.ts";

it.each([
  ["nothing", [], undefined],
  ["no finite value", [Number.NaN, Number.POSITIVE_INFINITY], undefined],
  [
    "equal values",
    [3, 3],
    { min: 3, max: 3, count: 2, sum: 6, sumSquares: 18, edges: [2.5, 2.75, 3, 3.25, 3.5], counts: [0, 0, 2, 0] },
  ],
  [
    "a value on an edge, the largest, and NaN",
    [0, 1, 4, Number.NaN],
    { min: 0, max: 4, count: 3, sum: 5, sumSquares: 17, edges: [0, 1, 2, 3, 4], counts: [1, 1, 0, 1] },
  ],
])("%s", (_, values, expected) => expect(histogram(values, 4)).toEqual(expected));

it("every finite value is in one bin", () => {
  fc.assert(
    fc.property(fc.array(fc.double({ min: -1e9, max: 1e9, noNaN: true }), { minLength: 1 }), (values) => {
      const { counts, edges } = histogram(values)!;
      expect(counts.reduce((sum, count) => sum + count)).toBe(values.length);
      expect(edges).toHaveLength(counts.length + 1);
    }),
  );
});

it("kinds without values have no histogram", () => {
  const found = histograms({ response_length: [1], reward: [], entropy: [Number.NaN] });
  expect(found.map(([name]) => name)).toEqual(["response_length"]);
});
