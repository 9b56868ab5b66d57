/** Rows by index. Small on purpose: a generated dataset is a function, a file is an array with origins. */
import type { Task } from "../agents/types.ts";

export interface Dataset<Row> {
  name: string;
  size: number;
  /** @param index 0 <= index < size. The same index always gives the same task. */
  task(index: number): Task<Row>;
  /** What was noticed on opening and should be told, one sentence each: `"train.jsonl: 3 empty lines skipped"`. */
  notes?: readonly string[];
}

/** A row as a file holds it: columns by name. */
export type FileRow = Record<string, unknown>;
