/** Direct preference optimization: the trainer's loop with pairs instead of rollouts. */
import { isDeepStrictEqual } from "node:util";
import { type PreferenceOptions, preferenceLoss } from "../algorithms/supervised/preference-loss.ts";
import type { Learner } from "../backends/engine.ts";
import { batches } from "../data/batches.ts";
import { takeTasks } from "../data/sampler.ts";
import type { Task } from "../data/task.ts";
import type { Dataset } from "../data/types.ts";
import { RunError, UserError } from "../errors.ts";
import { addMetrics, averageMetrics } from "../statistics.ts";
import type { Experiment } from "../trainer/experiment.ts";
import type { Source, SourceKind, StepInput } from "../trainer/source.ts";
import { selectSequences } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { type SourceOptions, sourceExperiment } from "./experiment.ts";
import { checkRows, type GivenRow, lengthLimit, limited, ofRow, toStepInput } from "./given-rows.ts";
import { readPair } from "./read-pair.ts";
import { checkExample, rowSteps } from "./row-steps.ts";
import { takeSteps } from "./take-steps.ts";

/**
 * An experiment that learns from pairs of a better and a worse reply.
 *
 * @example
 * await train(dpo({ data: await openDataset("pairs.jsonl") }), { from: "runs/latest" });
 */
export const dpo = <Row>(options: SourceOptions<Row>): Experiment<Row> =>
  sourceExperiment(options, pairs(options.validation), 1e-5);

const pairs = (validation: Dataset<unknown> | undefined): SourceKind => ({
  name: "pairs",
  needsReference: true,
  async open(parts, config) {
    const { learner, reference } = parts.models;
    if (!reference) throw new RunError("pairs need the model before training, but the run has no reference");
    const { loss_type: lossType, beta, label_smoothing: smoothing } = config.dpo;
    const options: PreferenceOptions = { lossType, beta, smoothing };
    const limit = lengthLimit(config, parts.contextWindow);
    const read = (task: Task) => readPair(task.row, task.origin);
    const give = (task: Task) =>
      ofRow(task, async (): Promise<GivenRow> => {
        const pair = read(task);
        const chosen = await limited(rowSteps(pair.chosen, parts, "all_assistant_messages"), "chosen", limit);
        const rejected = await limited(rowSteps(pair.rejected, parts, "all_assistant_messages"), "rejected", limit);
        const both = [chosen, rejected];
        if (both.every(({ trajectory }) => trajectory.steps.length > 0)) {
          const cut = Number(both.some((one) => one.cut > 0));
          return { task, trajectories: both.map(({ trajectory }) => trajectory), cut, dropped: 0 };
        }
        // One reply alone is not a comparison.
        if (both.every(({ dropped }) => dropped === 0)) throw new UserError("a reply of the pair is empty");
        return { task, trajectories: [], cut: 0, dropped: 1 };
      });
    const check = async (task: Task, renders: boolean) => {
      const { chosen, rejected } = read(task);
      for (const reply of [chosen, rejected]) await checkExample(reply, parts, "all_assistant_messages", renders);
      return isDeepStrictEqual(chosen, rejected) ? "have equal replies, which teach nothing" : undefined;
    };
    for (const dataset of [parts.tasks, validation])
      if (dataset) await checkRows(dataset, limit, check, give, parts.warn);

    const inputOf = async (tasks: readonly Task[], epoch: number): Promise<StepInput> => {
      const input = toStepInput(await Promise.all(tasks.map(give)), epoch, limit.most);
      return { ...input, batch: await withReference(reference, input.batch) };
    };
    const source: Source = {
      phase: "rows",
      samples: false,
      async next(step) {
        const { tasks, epoch } = takeTasks(parts.tasks, parts.recipe.tasks, step);
        return inputOf(tasks, epoch);
      },
      update: ({ batch }, context) =>
        takeSteps(learner, batch, (part) => preferenceLoss(part, options), parts.recipe.update, context),
    };
    if (validation) {
      const atOnce = config.data.val_batch_size;
      source.validate = () => measurePairs(learner, validation, (tasks) => inputOf(tasks, 0), options, atOnce);
    }
    return source;
  },
});

async function withReference(reference: Learner, batch: TrainingBatch): Promise<TrainingBatch> {
  if (batch.sequences.length === 0) return { ...batch, referenceLogprobs: new Float32Array(0) };
  const { logprobs } = await reference.forward(batch.sequences, {});
  return { ...batch, referenceLogprobs: logprobs };
}

async function measurePairs(
  learner: Learner,
  dataset: Dataset<unknown>,
  inputOf: (tasks: readonly Task[]) => Promise<StepInput>,
  options: PreferenceOptions,
  batchSize: number,
): Promise<Record<string, number>> {
  const measured = [];
  for (const tasks of batches(dataset, batchSize)) {
    const { batch } = await inputOf(tasks);
    if (batch.sequences.length === 0) continue;
    const all = Int32Array.from(batch.sequences.keys());
    const outputs = await learner.forward(batch.sequences, {});
    const { loss, metrics } = preferenceLoss(selectSequences(batch, all), options).evaluate(outputs, all);
    const pairCount = new Set(batch.groups).size;
    measured.push({ ...metrics, "dpo/loss": { sum: loss * pairCount, count: pairCount } });
  }
  const { "dpo/loss": loss = Number.NaN, ...metrics } = averageMetrics(addMetrics(measured));
  const named = Object.entries(metrics).map(([name, value]) => [name.replace("dpo/", "val/"), value]);
  return { "val/log_likelihood": -loss, "val/loss": loss, ...Object.fromEntries(named) };
}
