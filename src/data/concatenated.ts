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
      let within = index;
      for (const dataset of datasets) {
        if (within < dataset.size) return dataset.task(within);
        within -= dataset.size;
      }
      throw new RangeError(`row ${index} is out of range`);
    },
  };
}
