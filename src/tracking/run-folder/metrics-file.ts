/** Reads metrics.jsonl of a run folder, and rewinds it to an earlier step. The run folder appends to it. */
import { appendFileSync, closeSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { UserError } from "../../errors.ts";
import { writeWhole } from "../../files/durable-files.ts";
import { openInside } from "../../files/regular-file.ts";
import type { StepMetrics } from "../events.ts";
import { numbersOf, parseLine } from "./json-lines.ts";
import { linesFrom, tooLong } from "./lines.ts";

export const metricsFile = "metrics.jsonl";

/** A training step has no `kind`. `time`: ISO 8601. */
const lineSchema = z.looseObject({
  step: z.int().nonnegative(),
  epoch: z.number().optional(),
  kind: z.literal("validation").optional(),
  time: z.string().optional(),
});

export interface MetricsLine {
  step: number;
  epoch: number | undefined;
  validation: boolean;
  time: string | undefined;
  metrics: Record<string, number>;
}

/** @throws Error with a clause about what is wrong */
export function readMetricsLine(text: string): MetricsLine {
  const { step, epoch, kind, time, ...rest } = parseLine(lineSchema, text);
  return { step, epoch, validation: kind === "validation", time, metrics: numbersOf(rest) };
}

interface ParsedLine {
  text: string;
  /** False: the line was cut off. */
  ended: boolean;
  /** Undefined: the line cannot be read. */
  read: MetricsLine | undefined;
}

type Kind = "step" | "validation";

/** The lines of training steps or of validations, oldest first. Lines that cannot be read are left out. */
export const readMetrics = (runFolder: string, kind: Kind = "step"): StepMetrics[] => [...eachMetrics(runFolder, kind)];

/** The same, one line at a time, for long runs. */
export function* eachMetrics(runFolder: string, kind: Kind = "step"): Generator<StepMetrics> {
  for (const { read } of parsedLines(runFolder)) {
    if (read?.validation === (kind === "validation")) yield { step: read.step, metrics: read.metrics };
  }
}

/**
 * Moves every line of a step after `lastStep`, and every line that cannot be read, to metrics.discarded.jsonl.
 * A crash in between can leave a line in both files but never in neither.
 * `repaired`: the last line was cut off.
 */
export function rewindMetrics(runFolder: string, lastStep: number): { discarded: number; repaired: boolean } {
  const isKept = ({ read }: ParsedLine) => read !== undefined && read.step <= lastStep;
  const discarded: string[] = [];
  let last: ParsedLine | undefined;
  for (const line of parsedLines(runFolder)) {
    if (!isKept(line)) discarded.push(`${line.text}\n`);
    last = line;
  }
  const isCutOff = last?.ended === false;
  if (discarded.length > 0) appendFileSync(join(runFolder, "metrics.discarded.jsonl"), discarded.join(""));
  if (discarded.length > 0 || isCutOff) writeWhole(join(runFolder, metricsFile), keptLines(runFolder, isKept));
  return { discarded: discarded.length, repaired: isCutOff && last?.read === undefined };
}

function* keptLines(runFolder: string, isKept: (line: ParsedLine) => boolean): Generator<string> {
  for (const line of parsedLines(runFolder)) if (isKept(line)) yield `${line.text}\n`;
}

/** @throws UserError for a line that is too long */
function* parsedLines(runFolder: string): Generator<ParsedLine> {
  const file = openInside(runFolder, metricsFile);
  if (file === undefined) return;
  try {
    let number = 0;
    for (const { text, length, ended } of linesFrom(file)) {
      number++;
      if (text === undefined) {
        throw new UserError(`${join(runFolder, metricsFile)}:${number}: the line is too long: ${tooLong(length)}`, {
          hint: "remove that line",
        });
      }
      if (text.trim() !== "") yield { text, ended, read: readOrSkip(text) };
    }
  } finally {
    closeSync(file.handle);
  }
}

function readOrSkip(text: string): MetricsLine | undefined {
  try {
    return readMetricsLine(text);
  } catch {
    return undefined;
  }
}
