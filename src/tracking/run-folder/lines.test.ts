import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { withInside } from "../../files/regular-file.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { completeLines, linesFrom } from "./lines.ts";

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
