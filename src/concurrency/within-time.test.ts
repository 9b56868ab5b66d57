import { expect, test } from "vitest";
import { withinTime } from "./within-time.ts";

test("a pattern that backtracks without end is interrupted, and later work runs", () => {
  expect(withinTime(50, () => /^(a+)+$/.test(`${"a".repeat(60)}b`))).toBeUndefined();
  expect(withinTime(1000, () => /^(a+)+$/.test("aa"))).toBe(true);
  expect(() =>
    withinTime(1000, () => {
      throw new RangeError("own");
    }),
  ).toThrow(new RangeError("own"));
});
