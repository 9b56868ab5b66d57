/** An experiment that learns from data of its own, and takes tasks and settings of another one. */
import type { ConfigInput } from "../config/schema.ts";
import type { Dataset } from "../data/types.ts";
import { isObject } from "../is-object.ts";
import type { Experiment } from "../trainer/experiment.ts";
import type { SourceKind } from "../trainer/source.ts";

/** What `sft` and `dpo` learn from. */
export interface SourceOptions<Row = unknown> {
  /** In one of the formats of docs/guide/fine-tuning.md. */
  data: Dataset<unknown>;
  /** Measured every `rllm.trainer.test_freq` steps. */
  validation?: Dataset<unknown>;
  /** Its validation tasks are attempted as in `hone train`, and its settings count, except those of training. */
  experiment?: Experiment<Row>;
  /** Stronger than the experiment's settings. */
  config?: ConfigInput;
}

export function sourceExperiment<Row>(
  { data, validation, experiment, config = {} }: SourceOptions<Row>,
  source: SourceKind,
  learningRate: number,
): Experiment<Row> {
  const own: ConfigInput = {
    rllm: { trainer: { total_epochs: 1, total_batches: -1 } },
    training: {
      source: source.name,
      num_minibatches: 1,
      ppo_epochs: 1,
      learning_rate: learningRate,
      lr_schedule: "linear",
    },
    data: { train_batch_size: 32, train_files: data.name, val_files: validation?.name ?? null },
  };
  // A run without validation data has no other way to compare checkpoints.
  if (validation && !experiment?.validation) own.training = { ...own.training, best_metric: "val/log_likelihood" };
  const { train: _, config: theirs = {}, ...rest } = experiment ?? { train: undefined };
  return {
    ...(rest as Partial<Experiment<Row>>),
    train: data as Experiment<Row>["train"],
    source,
    config: merged(merged(theirs, own), config) as ConfigInput,
  };
}

/** Sections key by key; anything else as a whole. */
function merged(under: unknown, over: unknown): unknown {
  if (!isObject(under) || !isObject(over)) return over;
  const names = Object.keys({ ...under, ...over });
  return Object.fromEntries(
    names.map((name) => [name, Object.hasOwn(over, name) ? merged(under[name], over[name]) : under[name]]),
  );
}
