/** metrics.jsonl of a run folder, read and brought back to an earlier step. Written by the run folder, one line at a time. */
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { writeWhole } from "./durable-files.ts";
import type { StepMetrics } from "./events.ts";
import { figuresOf } from "./json-lines.ts";

interface ParsedLine {
  text: string;
  /** Undefined: not a line of ours. */
  step: number | undefined;
  validation: boolean;
  figures: Record<string, number>;
}

/** The lines of training steps (`"step"`) or of validations, oldest first. Lines that cannot be read are left out. */
export function readMetrics(runFolder: string, kind: "step" | "validation" = "step"): StepMetrics[] {
  return parseLines(join(runFolder, "metrics.jsonl")).lines.flatMap(({ step, validation, figures }) => {
    if (step === undefined || validation !== (kind === "validation")) return [];
    const { step: _step, epoch: _epoch, ...metrics } = figures;
    return [{ step, metrics }];
  });
}

/**
 * Moves every line of a later step than `lastStep`, and every line that cannot be read, to metrics.discarded.jsonl.
 * A crash in between leaves lines in both files, never in none.
 * `repaired`: the last line was torn.
 */
export function rewindMetrics(runFolder: string, lastStep: number): { discarded: number; repaired: boolean } {
  const file = join(runFolder, "metrics.jsonl");
  const { lines, endsWithNewline } = parseLines(file);
  const isKept = ({ step }: ParsedLine) => step !== undefined && step <= lastStep;
  const keep = lines.filter(isKept);
  const discard = lines.filter((line) => !isKept(line));
  if (discard.length > 0) {
    appendFileSync(join(runFolder, "metrics.discarded.jsonl"), discard.map(({ text }) => `${text}\n`).join(""));
  }
  if (discard.length > 0 || !endsWithNewline)
    writeWhole(
      file,
      keep.map(({ text }) => `${text}\n`),
    );
  return { discarded: discard.length, repaired: !endsWithNewline && lines.at(-1)?.step === undefined };
}

function parseLines(file: string): { lines: ParsedLine[]; endsWithNewline: boolean } {
  const text = existsSync(file) ? readFileSync(file, "utf8") : "";
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return { lines: lines.map(parseLine), endsWithNewline: text === "" || text.endsWith("\n") };
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
