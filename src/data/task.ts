/** One row of a dataset. */
export interface Task<Row = unknown> {
  /** The row's own `id`, or `"{dataset}/{index}"`: the same across runs and resumes. */
  id: string;
  row: Row;
  /** Where the row came from, for messages: `"train.jsonl:17"`. */
  origin: string;
}
