/** Creates a dataset from an array. */
import { UserError } from "../errors.ts";
import type { Dataset } from "./types.ts";

/**
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
  const ids = rows.map((row, index) => options.id?.(row, index) ?? `${name}/${index}`);
  const first = new Map<string, number>();
  for (const [index, id] of ids.entries()) {
    const earlier = first.get(id);
    if (earlier !== undefined) {
      throw new UserError(`${name}: rows ${earlier} and ${index} have the same id "${id}"`, {
        hint: "Rollouts are grouped by task id, so each row needs a unique id.",
      });
    }
    first.set(id, index);
  }
  return {
    name,
    size: rows.length,
    task: (index) => ({ id: ids[index]!, row: rows[index]!, origin: `${name}[${index}]` }),
  };
}
