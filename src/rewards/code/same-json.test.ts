import { expect, test } from "vitest";
import { sameJson } from "./same-json.ts";

test.each<[string, string, boolean]>([
  ["1", "1.0", true],
  ["-0.0", "0", true],
  ["9007199254740993", "9007199254740992", false],
  ["[9007199254740993]", "[9007199254740993]", true],
  ['"9007199254740993"', "9007199254740993", false],
  ['{"a": 1, "b": [true, null]}', '{"b": [true, null], "a": 1}', true],
  ['{"a": 1}', '{"a": 1, "b": 2}', false],
  ['{"length": 0}', "[]", false],
  ['{"__proto__": {}}', '{"toString": {}}', false],
  ["true", "1", false],
  ["NaN", "null", false],
  ["Infinity", "Infinity", false],
  ["undefined", "null", false],
  ["[".repeat(200_000), "[]", false],
  [`"${'\\"'.repeat(300_000)}`, '""', false],
])("%.40s and %.40s", (left, right, same) => {
  expect(sameJson(left, right)).toBe(same);
});
