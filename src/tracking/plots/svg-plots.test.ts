import { expect, it } from "vitest";
import { lengthsSvg } from "./svg-plots.ts";

const heights = (svg: string, color: string) =>
  [...svg.matchAll(new RegExp(`height="([\\d.]+)" fill="${color}"`, "g"))].map(([, height]) => Number(height));

it("draws the distribution of reply lengths, with those at the limit in red", () => {
  const svg = lengthsSvg(7, [1, 1, 2, 4, 4, 4, 4], 4);
  expect(svg).toContain("step 7: tokens of 7 replies, 4 at the limit of 4");
  const [zero, one, two, three, four] = heights(svg, "#4878a8");
  expect([zero, three]).toEqual([0, 0]);
  expect(one! / four!).toBeCloseTo(2 / 4);
  expect(two! / four!).toBeCloseTo(1 / 4);
  expect(heights(svg, "#c0392b")).toEqual([four]);
});

it("draws long replies in few bars, and an empty plot without replies", () => {
  expect(heights(lengthsSvg(1, [0, 4000, 8192], 10_000), "#4878a8").length).toBeLessThanOrEqual(33);
  expect(lengthsSvg(1, [], 10)).toContain("tokens of 0 replies");
});
