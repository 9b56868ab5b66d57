/** Creates a dataset from an array. */

import { UserError } from "../errors.ts";
import type { Task } from "./task.ts";
import type { Dataset } from "./types.ts";

/**
 * A dataset of rows in memory.
 *
 * @param options.id returns a unique id for a row; default `"{name}/{index}"`
 * @example
 * const sums = fromRows("sums", [{ question: "2+2", answer: 4 }]);
 */
export function fromRows<Row>(
  name: string,
  rows: readonly Row[],
  options: { id?: (row: Row, index: number) => string } = {},
): Dataset<Row> {
  if (rows.length === 0) throw new UserError(`the dataset ${name} has no rows`);
  const tasks: Task<Row>[] = [];
  const first = new Map<string, number>();
  for (const [index, row] of rows.entries()) {
    const id = options.id?.(row, index) ?? `${name}/${index}`;
    const earlier = first.get(id);
    if (earlier !== undefined) {
      throw new UserError(`${name}: rows ${earlier} and ${index} have the same id "${id}"`, {
        hint: "Rollouts are grouped by task id, so each row needs a unique id.",
      });
    }
    first.set(id, index);
    tasks.push({ id, row, origin: `${name}[${index}]` });
  }
  return { name, size: tasks.length, task: (index) => tasks[index] as Task<Row> };
}
