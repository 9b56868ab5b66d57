import { expect, test } from "vitest";
import { lastStep } from "./last-step.ts";

test("the last step is that of the last role that has one, and of a side call only without others", () => {
  const [agent, judge, side] = [
    { name: "agent", steps: [1, 2] },
    { name: "judge", steps: [] },
    { name: "side", steps: [3] },
  ];
  expect(lastStep([agent, judge, side])).toBe(2);
  expect(lastStep([judge, side])).toBe(3);
  expect(lastStep([])).toBeUndefined();
});
