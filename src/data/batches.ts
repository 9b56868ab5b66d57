import type { Task } from "./task.ts";
import type { Dataset } from "./types.ts";

/** The tasks of a dataset, in order. @param size tasks at once; -1: all */
export function* batches<Row>(dataset: Dataset<Row>, size: number): Generator<Task<Row>[]> {
  const atOnce = size === -1 ? dataset.size : size;
  for (let first = 0; first < dataset.size; first += atOnce) {
    const count = Math.min(atOnce, dataset.size - first);
    yield Array.from({ length: count }, (_, index) => dataset.task(first + index));
  }
}
