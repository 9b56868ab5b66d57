/** Datasets: rows by index. Kept minimal, so that a generated dataset can be a function and a file an array. */
import type { Task } from "./task.ts";

/** Tasks by their index. */
export interface Dataset<Row> {
  name: string;
  size: number;
  /** @param index 0 <= index < size. The same index always gives the same task. */
  task(index: number): Task<Row>;
  /** Notes from opening the dataset to show to the user: `"train.jsonl: skipped 3 empty lines"`. */
  notes?: readonly string[];
  /** Keeps rows that cannot be read again in the folder of a run; called when a run begins, and when it continues. */
  keep?(folder: string): void;
}

/** A row of a file: columns by name. */
export type FileRow = Record<string, unknown>;
