import fc from "fast-check";
import { expect, test } from "vitest";
import { dotted, printable, printableJson, printableLines } from "./printable.ts";

test.each([
  ["\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"],
  ["\x9b31m", "\\x9b31m"],
  ["a\nfake line\r\tb", "a\\nfake line\\r\\tb"],
  ["\u202egnp.exe", "\\u202egnp.exe"],
  ["\u2066x\u2069\u200e\u061c", "\\u2066x\\u2069\\u200e\\u061c"],
  ["\x7f\u0085\u2028", "\\x7f\\x85\\u2028"],
  ["häßlich 漢字 👩‍💻 x", "häßlich 漢字 👩‍💻 x"],
])("terminal escapes of %j are printed as %j", (text, shown) => {
  expect(printable(text)).toBe(shown);
});

test("escaped text never contains characters that control a terminal", () => {
  const acts = /[^\P{Cc}\n\t]|[\u2028\u2029\u202a-\u202e\u2066-\u2069]/u;
  fc.assert(
    fc.property(fc.string({ unit: "binary" }), (text) => {
      expect(printable(text)).not.toMatch(/\p{Cc}/u);
      expect(printableLines(text)).not.toMatch(acts);
      expect(printableLines(text).split("\n")).toHaveLength(text.split("\n").length);
      expect([...dotted(text)]).toHaveLength([...text].length);
      const json = JSON.stringify({ text });
      expect(printableJson(json)).not.toMatch(acts);
      expect(JSON.parse(printableJson(json))).toEqual({ text });
    }),
    { seed: 14 },
  );
});
