import { expect, test } from "vitest";
import { ago, duration, percent, short, signed } from "./numbers.ts";
import { oneLine, printable } from "./printable.ts";

test.each([
  [0, "0"],
  [0.03124, "0.0312"],
  [12.456, "12.5"],
  [3500.4, "3,500"],
  [2_300_000, "2.3M"],
  [4.2e9, "4.2G"],
  [-0.5, "−0.5"],
  [0.00001234, "1.2e−5"],
  ["NaN", "NaN"],
  ["-Infinity", "−∞"],
  [null, "–"],
  [undefined, "–"],
] as const)("short(%s) is %s", (value, text) => expect(short(value)).toBe(text));

test("signs and shares", () =>
  expect([signed(0.5), signed(-1), signed(0), percent(0.125), percent(1e-6)]).toEqual([
    "+0.5",
    "−1",
    "0",
    "12.5%",
    "<0.1%",
  ]));

test.each([
  [340, "340 ms"],
  [2430, "2.4 s"],
  [200_000, "3 min 20 s"],
  [7_500_000, "2 h 5 min"],
])("%i ms are %s", (milliseconds, text) => expect(duration(milliseconds)).toBe(text));

test("times ago", () => expect([ago(1000, 2000), ago(0, 300_000), ago(null)]).toEqual(["just now", "5 min ago", "–"]));

test.each([
  ["\u001b[31mred\u001b[0m", "␛[31mred␛[0m"],
  ["a\u202egnp.exe", "a‹U+202E›gnp.exe"],
  ["\u0000\u007f\u0085", "␀␡‹U+0085›"],
  ["\ud800 half", "‹U+D800› half"],
  ["half \udc00", "half ‹U+DC00›"],
  ["👩‍👩‍👧 שלום مرحبا नमस्ते", "👩‍👩‍👧 שלום مرحبا नमस्ते"],
  ["<script>alert(1)</script>\n\tx", "<script>alert(1)</script>\n\tx"],
])("%j is shown as %j", (text, shown) => expect(printable(text)).toBe(shown));

test("one line", () => expect(oneLine("a\n  b")).toBe("a ⏎ b"));
