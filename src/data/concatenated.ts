/** Several datasets one after the other. */
import { UserError } from "../errors.ts";
import type { Dataset } from "./types.ts";

/** @throws UserError for no dataset */
export function concatenated<Row>(datasets: readonly Dataset<Row>[]): Dataset<Row> {
  const [first, ...others] = datasets;
  if (first === undefined) throw new UserError("a list of datasets is empty");
  if (others.length === 0) return first;
  return {
    name: datasets.map(({ name }) => name).join("+"),
    size: datasets.reduce((total, { size }) => total + size, 0),
    notes: datasets.flatMap(({ notes = [] }) => notes),
    task(index) {
      const { part, within } = partAt(datasets, index);
      return part.task(within);
    },
  };
}

/** The part that has a row, in parts one after the other, and the number of the row within it. */
export function partAt<Part extends { size: number }>(parts: readonly Part[], index: number) {
  let within = index;
  for (const part of parts) {
    if (within < part.size) return { part, within };
    within -= part.size;
  }
  throw new RangeError(`row ${index} is out of range`);
}
