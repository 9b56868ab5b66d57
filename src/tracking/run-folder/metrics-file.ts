/** Reads metrics.jsonl of a run folder, and rewinds it to an earlier step. The run folder appends to it. */
import { appendFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { writeWhole } from "../../files/durable-files.ts";
import type { StepMetrics } from "../events.ts";
import { numbersOf, readLines } from "./json-lines.ts";

interface ParsedLine {
  text: string;
  /** False: the line was cut off. */
  ended: boolean;
  /** Undefined: the line cannot be read. */
  step: number | undefined;
  validation: boolean;
  numbers: Record<string, number>;
}

type Kind = "step" | "validation";

/** The lines of training steps or of validations, oldest first. Lines that cannot be read are left out. */
export const readMetrics = (runFolder: string, kind: Kind = "step"): StepMetrics[] => [...eachMetrics(runFolder, kind)];

/** The same, one line at a time, for long runs. */
export function* eachMetrics(runFolder: string, kind: Kind = "step"): Generator<StepMetrics> {
  for (const { step, validation, numbers } of parsedLines(join(runFolder, "metrics.jsonl"))) {
    if (step === undefined || validation !== (kind === "validation")) continue;
    const { step: _step, epoch: _epoch, ...metrics } = numbers;
    yield { step, metrics };
  }
}

/**
 * Moves every line of a step after `lastStep`, and every line that cannot be read, to metrics.discarded.jsonl.
 * A crash in between can leave a line in both files but never in neither.
 * `repaired`: the last line was cut off.
 */
export function rewindMetrics(runFolder: string, lastStep: number): { discarded: number; repaired: boolean } {
  const file = join(runFolder, "metrics.jsonl");
  const isKept = ({ step }: ParsedLine) => step !== undefined && step <= lastStep;
  const discarded: string[] = [];
  let last: ParsedLine | undefined;
  for (const line of parsedLines(file)) {
    if (!isKept(line)) discarded.push(`${line.text}\n`);
    last = line;
  }
  const isTorn = last?.ended === false;
  if (discarded.length > 0) appendFileSync(join(runFolder, "metrics.discarded.jsonl"), discarded.join(""));
  if (discarded.length > 0 || isTorn) writeWhole(file, keptLines(file, isKept));
  return { discarded: discarded.length, repaired: isTorn && last?.step === undefined };
}

function* keptLines(file: string, isKept: (line: ParsedLine) => boolean): Generator<string> {
  for (const line of parsedLines(file)) if (isKept(line)) yield `${line.text}\n`;
}

function* parsedLines(file: string): Generator<ParsedLine> {
  if (!existsSync(file)) return;
  for (const { text, ended } of readLines(file)) if (text.trim() !== "") yield parseLine(text, ended);
}

function parseLine(text: string, ended: boolean): ParsedLine {
  try {
    const object = JSON.parse(text) as Record<string, unknown>;
    const step = typeof object.step === "number" ? object.step : undefined;
    return { text, ended, step, validation: object.kind === "validation", numbers: numbersOf(object) };
  } catch {
    return { text, ended, step: undefined, validation: false, numbers: {} };
  }
}
