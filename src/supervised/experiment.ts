/** An experiment that learns from data of its own, and takes tasks and settings of another one. */
import type { Loss } from "../algorithms/types.ts";
import type { Learner } from "../backends/engine.ts";
import { addMetrics, averageMetrics, deriveSeed, isObject } from "../base/values.ts";
import type { ConfigInput } from "../config/schema.ts";
import type { Dataset } from "../data/dataset.ts";
import type { Experiment } from "../trainer/experiment.ts";
import { adamAt, allAtOnce, noSteps, policyStepMetrics, takeStep } from "../trainer/optimizer-steps.ts";
import type { StepSourceKind } from "../trainer/step-source.ts";
import { recordTokens } from "../trainer/token-record.ts";
import type { Update, UpdateContext, UpdateOptions } from "../trainer/update.ts";
import { splitBatch } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";

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
  source: StepSourceKind,
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

// Turns the input of a step into optimizer steps of one loss: the update of rows and pairs, which have no rewards and no old policy.

/** @param minibatches optimizer steps of an epoch; `groups` stay whole, so there are at most as many as groups */
export async function takeSteps(
  learner: Learner,
  batch: TrainingBatch,
  lossOf: (part: TrainingBatch) => Loss,
  { epochs, minibatches, seed, adam }: Pick<UpdateOptions, "epochs" | "minibatches" | "seed" | "adam">,
  { step, onProgress }: UpdateContext,
): Promise<Update> {
  const tokens = recordTokens(batch);
  const params = adamAt(adam, step);
  const parts = Math.min(minibatches, new Set(batch.groups).size);
  const total = batch.sequences.length * epochs;
  const steps = noSteps();
  let failure: string | undefined;
  let done = 0;
  for (let epoch = 0; epoch < epochs; epoch++) {
    for (const part of splitBatch(batch, parts, deriveSeed(seed, "minibatches", step, epoch))) {
      const dropped = await takeStep(steps, learner, part, lossOf(part), allAtOnce, params);
      if (dropped === undefined) tokens.outputs(part, steps.results.at(-1)!.outputs);
      failure = dropped ?? failure;
      done += part.sequences.length;
      onProgress(done, total);
    }
  }
  const metrics = {
    ...averageMetrics(addMetrics(steps.results.map((result) => result.metrics))),
    ...policyStepMetrics(steps),
    "actor/lr": params.learningRate,
  };
  return { failure, tokens, klWeight: undefined, metrics };
}
