import { expect, test } from "vitest";
import { sameJson } from "./code.ts";

test.each<[string, string, boolean]>([
  ["1", "1.0", true],
  ["-0.0", "0", true],
  ["9007199254740993", "9007199254740992", false],
  ["[9007199254740993]", "[9007199254740993]", true],
  ['"9007199254740993"', "9007199254740993", false],
  ["1124000727777607680000", "1.1240007277776077e+21", true],
  ["1124000727777607680001", "1.1240007277776077e+21", false],
  ["1e+16", "10000000000000000", true],
  ["1e+16", "10000000000000001", false],
  ['{"a": [1124000727777607680000]}', '{"a": [1.12400072777760768e21]}', true],
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
