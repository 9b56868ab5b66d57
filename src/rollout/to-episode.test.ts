import { expect, it } from "vitest";
import { keptRow } from "./to-episode.ts";

const circular: { self?: unknown } = {};
circular.self = circular;

it.each<[string, unknown, unknown]>([
  ["plain values", { question: "2+2", answer: 4 }, { question: "2+2", answer: 4 }],
  [
    "numbers that JSON does not know",
    { big: 9007199254740993n, none: Number.NaN },
    { big: "9007199254740993", none: "NaN" },
  ],
  ["a date", { day: new Date(0) }, { day: "1970-01-01T00:00:00.000Z" }],
  [
    "long bytes",
    { image: { bytes: new Uint8Array(1025) }, file: Buffer.alloc(2000) },
    { image: { bytes: "[1025 bytes]" }, file: "[2000 bytes]" },
  ],
  ["nothing", undefined, "[not kept: undefined]"],
  ["a circle", circular, "[not kept: Converting circular structure to JSON]"],
  ["a large one", "x".repeat(70_000), `[not kept: 70002 characters] "${"x".repeat(199)}`],
])("an episode keeps its task's row: %s", (_, row, kept) => {
  expect(keptRow(row)).toEqual(kept);
});
