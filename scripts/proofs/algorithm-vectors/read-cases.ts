/** Reads a file of recorded cases: `{"cases": [...]}`, or one case per line (`.jsonl`). */
import { readFileSync } from "node:fs";
import { UserError } from "../../../src/base/errors.ts";
import type { VectorCase } from "./family.ts";

/** JSON does not have these numbers, so the files contain strings. */
const notFinite: Readonly<Record<string, number>> = {
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  "-Infinity": Number.NEGATIVE_INFINITY,
};
const revive = (_key: string, value: unknown) =>
  typeof value === "string" && Object.hasOwn(notFinite, value) ? notFinite[value] : value;

/** @throws UserError when the file cannot be read or parsed */
export function readCases(path: string): VectorCase[] {
  const cases = parse(path, readText(path));
  const broken = cases.findIndex(({ name, inputs, outputs }) => typeof name !== "string" || !inputs || !outputs);
  if (broken >= 0) throw new UserError(`${path}: case ${broken} has no name, inputs or outputs`);
  return cases;
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    throw new UserError(`cannot read ${path}: ${(cause as Error).message}`, { cause });
  }
}

function parse(path: string, text: string): VectorCase[] {
  try {
    if (path.endsWith(".jsonl")) {
      return text
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line, revive) as VectorCase);
    }
    const { cases } = JSON.parse(text, revive) as { cases?: VectorCase[] };
    if (Array.isArray(cases)) return cases;
  } catch (cause) {
    throw new UserError(`${path} is not JSON: ${(cause as Error).message}`, { cause });
  }
  throw new UserError(`${path} has no list of cases`, { hint: 'expected {"cases": [{"name", "inputs", ...}, ...]}' });
}
