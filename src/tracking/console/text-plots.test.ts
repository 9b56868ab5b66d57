import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bar, chart, sparkline } from "./text-plots.ts";

describe("bar", () => {
  it.each([
    [0, "░░░░"],
    [0.5, "██░░"],
    [1, "████"],
    [7, "████"],
    [-1, "░░░░"],
  ])("shows %d", (fraction, text) => expect(bar(fraction, 4)).toBe(text));
});

describe("sparkline", () => {
  it.each([
    [[], 4, ""],
    [[0.5], 4, "▁"],
    [[1, 1, 1], 4, "▁▁▁"],
    [[0, 1], 4, "▁█"],
    [[0, Number.NaN, 1], 4, "▁█"],
    [[0, 0, 4, 4, 7, 7], 3, "▁▅█"],
  ])("draws %j in %d cells", (values, width, text) => expect(sparkline(values, width)).toBe(text));
});

describe("chart", () => {
  it("puts values on a scale", () => {
    expect(chart([0.1, 0.2, Number.NaN, 0.9, 0.5], { width: 20, height: 4 })).toEqual([
      "0.90 |      *",
      "     |        *",
      "     |",
      "0.10 |* *",
      "     +---------",
      "      1       5",
    ]);
  });

  it("does not label two values with the same number", () => {
    const labels = (values: number[]) =>
      chart(values, { width: 30, height: 3 })
        .map((line) => /^ *(\S+) \|/.exec(line)?.[1])
        .filter((label) => label !== undefined);
    expect(labels([0.0712, 0.0741])).toEqual(["0.074", "0.071"]);
    expect(labels([0.07, 0.07000000001])).toEqual(["7.00e-2", "7.00e-2"]);
    expect(labels([1e-9, 2e-9])).toEqual(["2.00e-9", "1.00e-9"]);
    expect(labels([0.5, 0.5])).toEqual(["0.50"]);
  });

  it("averages values that do not fit, and starts at the first step of a resumed run", () => {
    const values = Array.from({ length: 100 }, (_, index) => index);
    const lines = chart(values, { width: 20, height: 2, first: 101 });
    expect(lines.at(-1)).toMatch(/^ {7}101 +200$/);
    expect(lines[0]).toMatch(/^99\.00 \| {6}\*+$/);
  });

  it("is never wider than requested", () => {
    const value = fc.oneof(fc.double({ min: -1e3, max: 1e3, noNaN: true }), fc.constant(Number.NaN));
    fc.assert(
      fc.property(fc.array(value, { maxLength: 200 }), fc.integer({ min: 24, max: 100 }), (values, width) => {
        for (const line of chart(values, { width, height: 5 })) expect(line.length).toBeLessThanOrEqual(width);
      }),
    );
  });
});

it("draws a run of 300,000 steps", () => {
  const values = Array.from({ length: 300_000 }, (_, index) => index);
  expect(chart(values, { width: 40, height: 4 })).toHaveLength(6);
  expect(sparkline(values, 8)).toBe("▁▂▃▄▅▆▇█");
});
