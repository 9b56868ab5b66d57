import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, expect, it } from "vitest";
import { removeFolder } from "../../temporary-folder.fixture.ts";
import { numbersOf, readLines, toJson } from "./json-lines.ts";

const folder = mkdtempSync(join(tmpdir(), "json-lines-"));
afterAll(() => removeFolder(folder));

it.each([
  ["nothing", "", []],
  ["a last line without its end", "a\nb", ["a", "b"]],
  ["lines longer than a piece, with characters of several bytes", `${"ö€😀".repeat(30_000)}\nend\n`, undefined],
])("reads the lines of %s piece by piece", (_what, text, lines = text.split("\n").slice(0, -1)) => {
  const file = join(folder, "lines");
  writeFileSync(file, text);
  const read = [...readLines(file)];
  expect(read.map((line) => line.text)).toEqual(lines);
  expect(read.every(({ ended }) => ended)).toBe(text === "" || text.endsWith("\n"));
});

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
