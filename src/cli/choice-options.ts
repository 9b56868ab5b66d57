/** The options, the files and the report of commands that choose among the attempts at each task. */
import { writeFileSync } from "node:fs";
import { type Command, InvalidArgumentError, Option } from "commander";
import { UserError } from "../errors.ts";
import { printableJson } from "../printable.ts";
import { type Choice, type Chosen, selections } from "../supervised/choose-attempts.ts";
import { wholeNumber } from "./options.ts";

/** @param fallback what is selected without `--select`; undefined: nothing is chosen */
export const choiceOptions = (command: Command, fallback: Choice["select"] | undefined): Command => {
  const select = new Option(
    "--select <which>",
    "of each task: best (highest reward), correct, shortest (of the correct) or all",
  ).choices(selections);
  return command
    .option("--filter <condition>", 'only tasks that match, e.g. "0 < avg < 1"')
    .addOption(fallback === undefined ? select : select.default(fallback))
    .option(
      "--max-per-task <count>",
      "at most this many of each task (default: 1 of best and shortest)",
      wholeNumber(1),
    )
    .option("--dedup", "leave out equal conversations of a task")
    .option(
      "--val-fraction <share>",
      "also write this share of the tasks to a second place, OUTPUT with -val",
      fraction,
    );
};

export const conditionHelp = (what: string): string => `
A condition compares avg, best, worst, n, n_correct, solved and pass@K of a
task's ${what}: "n_correct >= 1 and avg < 0.9". Without a reward they do not
count.`;

function fraction(text: string): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= 0 && value < 1) return value;
  throw new InvalidArgumentError("It must be a number from 0 to below 1.");
}

export const jsonLine = (value: unknown) => `${printableJson(JSON.stringify(value))}\n`;

/** Writes to standard output if no file is named. @returns what it wrote where, or "" */
export function writeLines(values: readonly unknown[], output: string | undefined, hint: string): string {
  const lines = values.map(jsonLine).join("");
  if (output === undefined) {
    process.stdout.write(lines);
    return "";
  }
  createOutput(output, hint, () => writeFileSync(output, lines, { flag: "wx" }));
  return `${values.length} lines written to ${output}`;
}

/** @param hint for the user if it exists already: nothing is overwritten */
export function createOutput(output: string, hint: string, create: () => void): void {
  try {
    create();
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === "EEXIST") throw new UserError(`${output} already exists`, { hint });
    throw new UserError(`${output} cannot be written: ${message}`, { cause: error });
  }
}

/** The second place of `--val-fraction`; undefined without it. */
export function heldOutput({ valFraction, output }: { valFraction?: number | undefined; output?: string | undefined }) {
  if (!valFraction) return undefined;
  if (output === undefined) throw new UserError("--val-fraction writes to a second place, so it needs --output");
  return output.replace(/(\.[^./]*)?$/, "-val$1");
}

/** @param what the plural of an attempt */
export function describeCounts(
  { attempts, tasks, ...left }: Chosen["counts"] & { damaged?: number },
  what: "episodes" | "sessions",
): string {
  const reasons = {
    unknown: `${what} without a reward`,
    filtered: "tasks that do not match",
    repeated: "equal conversations",
    withoutMessages: `${what} without a conversation`,
    damaged: "lines that cannot be read",
  };
  const parts = Object.entries(reasons).flatMap(([name, reason]) => {
    const count = left[name as keyof typeof left] ?? 0;
    return count > 0 ? [`${count} ${reason}`] : [];
  });
  return `${attempts} ${what} of ${tasks} tasks${parts.length > 0 ? `; left out: ${parts.join(", ")}` : ""}`;
}
