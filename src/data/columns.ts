/** Types the columns that an experiment uses and checks them in every row before the run starts. */
import { z } from "zod";
import { UserError } from "../errors.ts";
import { nearest } from "../nearest.ts";
import type { Task } from "./task.ts";
import type { Dataset } from "./types.ts";

/**
 * Reads every row once, so an invalid row 70,000 does not stop a run overnight. Rows keep only the columns of `shape`.
 * @example
 * const tasks = columns(await openDataset("train.jsonl"), { question: z.string(), answer: z.string() });
 * @throws UserError for the first row with a missing column or a value of the wrong type, with the row's origin
 */
export function columns<Shape extends z.ZodRawShape>(
  dataset: Dataset<unknown>,
  shape: Shape,
): Dataset<z.output<z.ZodObject<Shape>>> {
  const schema = z.object(shape);
  const typed = (index: number): Task<z.output<z.ZodObject<Shape>>> => {
    const task = dataset.task(index);
    const parsed = schema.safeParse(task.row);
    if (!parsed.success) throw rowError(task, parsed.error);
    return { ...task, row: parsed.data };
  };
  for (let index = 0; index < dataset.size; index++) typed(index);
  return { ...dataset, task: typed };
}

function rowError(task: Task, error: z.ZodError): UserError {
  const { row, origin } = task;
  if (typeof row !== "object" || row === null) return new UserError(`${origin}: the row is not an object with columns`);
  const present = Object.keys(row);
  const missing = error.issues.map(({ path }) => String(path[0])).filter((column) => !present.includes(column));
  if (missing.length > 0) {
    const near = [...new Set(missing.flatMap((column) => nearest(column, present, 1)))];
    return new UserError(
      `${origin}: the row has no column ${missing.map((column) => `"${column}"`).join(", ")}; ` +
        `its columns are ${present.length === 0 ? "none" : present.map((column) => `"${column}"`).join(", ")}`,
      { hint: near.length > 0 ? `Did you mean ${near.map((column) => `"${column}"`).join(", ")}?` : renameHint },
    );
  }
  const wrong = error.issues.map(({ path, message }) => {
    const value = path.reduce<unknown>(
      (inner, part) => (inner as Record<PropertyKey, unknown> | undefined)?.[part],
      row,
    );
    return `column "${path.join(".")}" is ${shown(value)}: ${message.charAt(0).toLowerCase()}${message.slice(1)}`;
  });
  return new UserError(`${origin}: ${wrong.join("; ")}`, {
    hint: "Fix the row, or widen the column's type in the script, e.g. z.string().nullable().",
  });
}

const renameHint = "Use the column names of the file, and rename them in the workflow.";

function shown(value: unknown): string {
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 60 ? `${text.slice(0, 60)}...` : text;
}
