import { writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { expect, it } from "vitest";
import { withInside } from "../base/files.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { completeLines, linesFrom, numbersOf, toJson } from "./json-lines.ts";

it("keeps every number, finite or not", () => {
  const metrics = fc.dictionary(
    fc.string().filter((name) => name !== "__proto__"),
    fc.double().map((value) => value + 0), // JSON has no -0.
  );
  fc.assert(
    fc.property(metrics, (metrics) => {
      expect(numbersOf(JSON.parse(toJson(metrics)))).toEqual(metrics);
    }),
  );
  expect(numbersOf({ step: 1, kind: "validation", nested: {}, text: "NaN of it" })).toEqual({ step: 1 });
});

it("keeps every 32-bit float of a typed array exactly, in few digits", () => {
  fc.assert(
    fc.property(fc.float32Array(), (values) => {
      const read = (JSON.parse(toJson({ values })) as { values: (number | string)[] }).values;
      expect(Float32Array.from(read, Number)).toEqual(values.map((value) => value + 0)); // JSON has no -0.
    }),
  );
  expect(toJson(Float32Array.of(-0.1, 0.7, 1e-8))).toBe("[-0.1,0.7,1e-8]");
  expect(toJson({ tokens: Int32Array.of(1, 2) })).toBe('{"tokens":[1,2]}');
});

const folder = temporaryFolder("lines");

function linesOf(text: string, options: Parameters<typeof linesFrom>[1] = {}, read = linesFrom) {
  writeFileSync(join(folder, "lines"), text);
  return withInside(folder, "lines", (file) => [...read(file, options)])!;
}

it.each([
  ["nothing", "", []],
  ["a last line without its end", "a\nb", ["a", "b"]],
  ["lines longer than a piece, with characters of several bytes", `${"ö€😀".repeat(30_000)}\nend\n`, undefined],
])("reads the lines of %s piece by piece", (_what, text, lines = text.split("\n").slice(0, -1)) => {
  const read = linesOf(text);
  expect(read.map((line) => line.text)).toEqual(lines);
  expect(read.every(({ ended }) => ended)).toBe(text === "" || text.endsWith("\n"));
});

it("a line that is too long has no text, and the next one is read", () => {
  const long = "x".repeat(600_000);
  const shown = (line: ReturnType<typeof linesOf>[0]) => [line.offset, line.text ?? line.length, line.ended];
  expect(linesOf(`a\n${long}\nb\n`, { max: 1000 }).map(shown)).toEqual([
    [0, "a", true],
    [2, 600_000, true],
    [600_003, "b", true],
  ]);
  expect(linesOf(`a\n${long}`, { max: 1000 }, completeLines).map(shown)).toEqual([
    [0, "a", true],
    [2, 600_000, false],
  ]);
  expect(linesOf("a\nb\nc", { offset: 2, end: 3 }).map(shown)).toEqual([[2, "b", false]]);
  expect(linesOf("a\nb", {}, completeLines).map(shown)).toEqual([[0, "a", true]]);
});
