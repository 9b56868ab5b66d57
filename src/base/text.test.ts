import fc from "fast-check";
import { expect, test } from "vitest";
import { RunError } from "./errors.ts";
import { dotted, maskUrls, nearest, printable, printableJson, printableLines } from "./text.ts";

test.each([
  ["qestion", ["answer", "question"], ["question"]],
  ["maxLength", ["min_length", "max_length"], ["max_length", "min_length"]],
  ["Question", ["question", "answer"], ["question"]],
  ["epochs", ["ppo_epochs", "total_epochs", "seed"], ["ppo_epochs", "total_epochs"]],
  ["zzz", ["question", "answer"], []],
  ["a".repeat(100_000), ["question"], []],
])("nearest to %.20s", (name, candidates, expected) => {
  expect(nearest(name, candidates)).toEqual(expected);
});

test.each([
  ["http://user:secret@host:80/path?q=a@b", "http://***@host:80/path?q=a@b"],
  ["https://secret@host answered 500", "https://***@host answered 500"],
  ['"http://a:p@ss@host"', '"http://***@host"'],
  ["two: http://a:b@x/ and ftp://c:d@y", "two: http://***@x/ and ftp://***@y"],
  ["http://host/@name and a@b.c", "http://host/@name and a@b.c"],
  ["http://[::1]:80/", "http://[::1]:80/"],
])("masks the login in %s", (text, masked) => {
  expect(maskUrls(text)).toBe(masked);
  expect(maskUrls(masked)).toBe(masked);
  expect(printable(text)).toBe(masked);
});

test("no error contains a login", () => {
  const url = "http://user:secret@host";
  const { message, hint, details } = new RunError(`${url} failed`, { hint: `use ${url}`, details: url });
  expect(`${message} ${hint} ${details}`).not.toContain("secret");
});

test("takes linear time", () => {
  const text = `http://${"@a".repeat(50_000)} ://${":".repeat(50_000)}`;
  expect(maskUrls(text)).toContain("http://***@a");
});

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
