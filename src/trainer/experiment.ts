/** What a training script hands over: where tasks come from, how one is attempted and graded, and settings. */
import type { Workflow } from "../agents/types.ts";
import type { ConfigInput } from "../config/schema.ts";
import type { Dataset } from "../data/types.ts";

export interface Experiment<Row> {
  /** Tasks to learn from. */
  train: Dataset<Row>;
  /** Tasks to measure on before, during and after training. */
  validation?: Dataset<Row>;
  /** One attempt at one task. */
  workflow: Workflow<Row>;
  /** Settings of this experiment; files and command line overrides win over them. */
  config?: ConfigInput;
  /** Printed when the run has ended: what to try next. */
  next?: string;
}

/**
 * Types an experiment without running it, for `export default`.
 *
 * @example
 * export default defineExperiment({
 *   train: fromRows("sums", [{ question: "2+2", answer: 4 }]),
 *   workflow: singleTurn({ prompt: (row) => row.question, reward: (row, reply) => Number(reply.text.includes(String(row.answer))) }),
 * });
 */
export function defineExperiment<Row>(experiment: Experiment<Row>): Experiment<Row> {
  return experiment;
}
