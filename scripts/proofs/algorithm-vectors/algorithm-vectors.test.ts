import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { checkCases } from "./check-cases.ts";
import { differences } from "./differences.ts";
import { families } from "./families.ts";
import { family } from "./family.ts";
import { readCases } from "./read-cases.ts";

const verdicts = checkCases(readCases(fileURLToPath(new URL("recorded.jsonl", import.meta.url))), families);

test.each(Object.keys(families))("%s: the recorded values", (name) => {
  const own = verdicts.filter((verdict) => verdict.family === name);
  expect(own.filter(({ result }) => result === "failed")).toEqual([]);
  expect(own.length).toBeGreaterThan(0);
});

test("a case belongs to the longest family whose name is a prefix of its name, and is compared by its values", () => {
  const vector = (name: string, outputs: unknown) => ({ name, inputs: {}, params: {}, outputs, tol: 1e-3 });
  const known = {
    a: family(() => ({ x: 1 })),
    "a/b": family(
      () => ({ x: 2 }),
      ({ name }) => (name.endsWith("odd") ? { why: "on purpose", instead: { x: 2 } } : undefined),
    ),
    "a/c": { skip: "not ours" },
    "a/d": family(() => {
      throw new RangeError("no");
    }),
  };
  const cases = [
    vector("a/x", { x: 1.0005 }),
    vector("a/bb", { x: 2 }),
    vector("a/b/even", { x: 2 }),
    vector("a/b/odd", { x: 5 }),
    vector("a/c/1", {}),
    vector("a/d", {}),
    vector("b/a", {}),
  ];
  expect(checkCases(cases, known).map(({ family, result }) => `${family} ${result}`)).toEqual([
    "a passed",
    "a failed",
    "a/b passed",
    "a/b skipped",
    "a/c skipped",
    "a/d failed",
    "b/a failed",
  ]);
});

test("values differ if one is missing, has another length, or is non-finite in a different way", () => {
  expect(differences({ a: [1, Number.NaN], b: 1 }, { a: [1, Number.NaN] }, 0)).toEqual([]);
  expect(differences({}, { a: 1 }, 1)).toHaveLength(1);
  expect(differences([1, 2, 3], [1, 2], 1)).toHaveLength(1);
  expect(differences([Number.NaN], [0], 1)).toHaveLength(1);
  expect(differences([0], [Number.NaN], 1)).toHaveLength(1);
  expect(differences([Number.POSITIVE_INFINITY], [Number.NEGATIVE_INFINITY], 1)).toHaveLength(1);
});
