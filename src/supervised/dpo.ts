/** `hone dpo`: preference pairs as a step source. */
import { isDeepStrictEqual } from "node:util";
import { type PreferenceOptions, preferenceLoss } from "../algorithms/supervised.ts";
import type { Learner } from "../backends/engine.ts";
import { RunError, UserError } from "../base/errors.ts";
import { addMetrics, averageMetrics, isObject } from "../base/values.ts";
import { batches, type Dataset, type Task, takeTasks } from "../data/dataset.ts";
import type { Experiment } from "../trainer/experiment.ts";
import type { StepInput, StepSource, StepSourceKind } from "../trainer/step-source.ts";
import { selectSequences } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import { type SourceOptions, sourceExperiment, takeSteps } from "./experiment.ts";
import {
  checkExample,
  checkRows,
  type GivenRow,
  lengthLimit,
  limited,
  ofRow,
  rowSteps,
  toStepInput,
} from "./row-steps.ts";
import { asMessages, type Example, imagesOf, readMessages, readTools, requireNoImages } from "./rows.ts";

// Reads the formats of preference pairs: TRL's and OpenAI's.

/** The same context with a better and a worse continuation, of which only that is learned. */
export interface Pair {
  chosen: Example;
  rejected: Example;
}

type Row = Readonly<Record<string, unknown>>;

/** @throws UserError for a row of no known format */
export function readPair(row: unknown, at: string): Pair {
  if (!isObject(row)) throw new UserError(`${at}: the row is not an object with columns`);
  const { input, preferred_output: preferred, non_preferred_output: other } = row;
  if (isObject(input)) {
    const given = { prompt: input.messages, chosen: preferred, rejected: other, tools: input.tools };
    return readConversations(given, at, ["input.messages", "preferred_output", "non_preferred_output"]);
  }
  for (const name of ["chosen", "rejected"]) {
    if (row[name] === undefined || row[name] === null) {
      throw new UserError(
        `${at}: a pair needs chosen and rejected, with or without prompt, or OpenAI's input, preferred_output and non_preferred_output; it has ${Object.keys(row).join(", ") || "no columns"}`,
        {
          hint: "docs/guide/fine-tuning.md lists the formats",
        },
      );
    }
  }
  const { prompt = "", chosen, rejected } = row;
  if (typeof prompt === "string" && typeof chosen === "string" && typeof rejected === "string") {
    requireNoImages(row, at);
    const shared = prompt === "" ? sharedText(chosen, rejected) : "";
    const text = (reply: string): Example => ({
      kind: "text",
      prompt: prompt + shared,
      text: reply.slice(shared.length),
    });
    return { chosen: text(chosen), rejected: text(rejected) };
  }
  return readConversations({ ...row, prompt: row.prompt ?? [] }, at, ["prompt", "chosen", "rejected"]);
}

/** Up to the last space that both texts have in common, as in TRL. */
function sharedText(left: string, right: string): string {
  let same = 0;
  while (same < left.length && left[same] === right[same]) same++;
  return left[same - 1] === " " ? left.slice(0, same - 1) : left.slice(0, same);
}

function readConversations(row: Row, at: string, [context, better, worse]: [string, string, string]): Pair {
  const messagesOf = (value: unknown, role: string, name: string, images: readonly unknown[]) => {
    const given = asMessages(value, role);
    if (!Array.isArray(given)) throw new UserError(`${at}: ${name} must be text or a list of messages`);
    return given.length === 0 && images.length === 0 ? [] : readMessages(given, `${at}: ${name}`, images);
  };
  const images = imagesOf(row, at);
  const isImplicit = Array.isArray(row.prompt) && row.prompt.length === 0;
  const [early, late] = isImplicit ? [[], images] : [images, []];
  const before = messagesOf(row.prompt, "user", context, early);
  let chosen = messagesOf(row.chosen, "assistant", better, late);
  let rejected = messagesOf(row.rejected, "assistant", worse, late);
  if (isImplicit) {
    let same = 0;
    while (same < chosen.length - 1 && isDeepStrictEqual(chosen[same], rejected[same])) same++;
    before.push(...chosen.slice(0, same));
    [chosen, rejected] = [chosen.slice(same), rejected.slice(same)];
    if (same === 0) throw new UserError(`${at}: ${better} and ${worse} do not begin with the same prompt`);
  }
  const tools = readTools(row, at);
  const prompt = before.map((message) => (message.role === "assistant" ? { ...message, weight: 0 } : message));
  const example = (reply: typeof chosen, name: string): Example => {
    if (!reply.some(({ role, weight }) => role === "assistant" && weight !== 0))
      throw new UserError(`${at}: ${name} has no message of the assistant`);
    return { kind: "chat", messages: [...prompt, ...reply], tools };
  };
  return { chosen: example(chosen, better), rejected: example(rejected, worse) };
}

// Direct preference optimization: the trainer's loop with pairs instead of rollouts.

/**
 * An experiment that learns from pairs of a better and a worse reply.
 *
 * @example
 * await train(dpo({ data: await openDataset("pairs.jsonl") }), { from: "runs/latest" });
 */
export const dpo = <Row>(options: SourceOptions<Row>): Experiment<Row> =>
  sourceExperiment(options, pairs(options.validation), 1e-5);

const pairs = (validation: Dataset<unknown> | undefined): StepSourceKind => ({
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
    const source: StepSource = {
      phase: "rows",
      samples: false,
      async next(step) {
        const { tasks, epoch } = takeTasks(parts.tasks, parts.options.tasks, step);
        return inputOf(tasks, epoch);
      },
      update: ({ batch }, context) =>
        takeSteps(learner, batch, (part) => preferenceLoss(part, options), parts.options.update, context),
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
