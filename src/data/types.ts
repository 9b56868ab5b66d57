/** Rows by index. Small on purpose: a generated dataset is a function, a file is an array with origins. */
import type { Task } from "../agents/types.ts";

export interface Dataset<Row> {
  name: string;
  size: number;
  /** @param index 0 <= index < size. The same index always gives the same task. */
  task(index: number): Task<Row>;
}
