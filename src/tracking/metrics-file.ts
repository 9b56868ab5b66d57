/** metrics.jsonl of a run folder, read and brought back to an earlier step. Written by the run folder, one line at a time. */
import { appendFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { writeWhole } from "./durable-files.ts";
import type { StepMetrics } from "./events.ts";
import { figuresOf, readLines } from "./json-lines.ts";

interface ParsedLine {
  text: string;
  /** Undefined: not a line of ours. */
  step: number | undefined;
  validation: boolean;
  figures: Record<string, number>;
}

type Kind = "step" | "validation";

/** The lines of training steps (`"step"`) or of validations, oldest first. Lines that cannot be read are left out. */
export const readMetrics = (runFolder: string, kind: Kind = "step"): StepMetrics[] => [...eachMetrics(runFolder, kind)];

/** The same one by one, for runs whose lines are too many to hold. */
export function* eachMetrics(runFolder: string, kind: Kind = "step"): Generator<StepMetrics> {
  for (const { step, validation, figures } of parsedLines(join(runFolder, "metrics.jsonl"))) {
    if (step === undefined || validation !== (kind === "validation")) continue;
    const { step: _step, epoch: _epoch, ...metrics } = figures;
    yield { step, metrics };
  }
}

/**
 * Moves every line of a later step than `lastStep`, and every line that cannot be read, to metrics.discarded.jsonl.
 * A crash in between leaves lines in both files, never in none.
 * `repaired`: the last line was torn.
 */
export function rewindMetrics(runFolder: string, lastStep: number): { discarded: number; repaired: boolean } {
  const file = join(runFolder, "metrics.jsonl");
  const isKept = ({ step }: ParsedLine) => step !== undefined && step <= lastStep;
  const discard: string[] = [];
  let last: (ParsedLine & { ended: boolean }) | undefined;
  for (const line of parsedLines(file)) {
    if (!isKept(line)) discard.push(`${line.text}\n`);
    last = line;
  }
  const ended = last?.ended ?? true;
  if (discard.length > 0) appendFileSync(join(runFolder, "metrics.discarded.jsonl"), discard.join(""));
  if (discard.length > 0 || !ended) writeWhole(file, keptLines(file, isKept));
  return { discarded: discard.length, repaired: !ended && last?.step === undefined };
}

function* keptLines(file: string, isKept: (line: ParsedLine) => boolean): Generator<string> {
  for (const line of parsedLines(file)) if (isKept(line)) yield `${line.text}\n`;
}

function* parsedLines(file: string): Generator<ParsedLine & { ended: boolean }> {
  if (!existsSync(file)) return;
  for (const { text, ended } of readLines(file)) if (text.trim() !== "") yield { ...parseLine(text), ended };
}

function parseLine(text: string): ParsedLine {
  try {
    const object = JSON.parse(text) as Record<string, unknown>;
    const step = typeof object.step === "number" ? object.step : undefined;
    return { text, step, validation: object.kind === "validation", figures: figuresOf(object) };
  } catch {
    return { text, step: undefined, validation: false, figures: {} };
  }
}
