/** `hone sft`: rows as a step source, and bits per byte. */
import { type LikelihoodOptions, likelihoodLoss } from "../algorithms/supervised.ts";
import type { Chat } from "../chat/types.ts";
import { batches, type Dataset, type Task, takeTasks } from "../data/dataset.ts";
import type { Experiment } from "../trainer/experiment.ts";
import type { StepInput, StepSource, StepSourceKind, StepSourceParts } from "../trainer/step-source.ts";
import { trainedTokens } from "../trajectories/batch.ts";
import type { Sequence } from "../trajectories/types.ts";
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
import { type Example, readRow } from "./rows.ts";

// Bits per byte of the trained text, without special tokens, as in the Tinker cookbook: comparable between tokenizers.

interface TextMeter {
  isText(token: number): boolean;
  /** Of the trained text. */
  measure(sequences: readonly Sequence[]): { tokens: number; bytes: number };
}

/** Nothing if there is no text. */
const bitsPerByte = (name: string, nats: number, bytes: number): Record<string, number> =>
  bytes === 0 ? {} : { [name]: nats / Math.LN2 / bytes };

function openTextMeter({ decode }: Chat): TextMeter {
  const known = new Map<number, boolean>();
  const isText = (token: number): boolean => {
    let text = known.get(token);
    if (text === undefined) {
      text = decode([token]) === "" || decode([token], { skipSpecial: true }) !== "";
      known.set(token, text);
    }
    return text;
  };
  return {
    isText,
    measure(sequences) {
      let [tokens, bytes] = [0, 0];
      for (const run of sequences.flatMap((sequence) => runsOf(sequence, isText))) {
        tokens += run.length;
        bytes += Buffer.byteLength(decode(run));
      }
      return { tokens, bytes };
    },
  };
}

/** Trained tokens of text without gaps. */
function runsOf({ tokens, trained }: Sequence, isText: (token: number) => boolean): number[][] {
  const runs: number[][] = [[]];
  for (const [position, flag] of trained.entries()) {
    const token = tokens[position + 1]!;
    if (flag === 1 && isText(token)) runs.at(-1)!.push(token);
    else if (runs.at(-1)!.length > 0) runs.push([]);
  }
  return runs;
}

// Supervised fine-tuning: the trainer's loop with rows instead of rollouts.

/**
 * An experiment that learns from rows.
 *
 * @example
 * await train(sft({ data: await openDataset("rows.jsonl") }), { overrides: ["sft.train_on=last_assistant_message"] });
 */
export const sft = <Row>(options: SourceOptions<Row>): Experiment<Row> =>
  sourceExperiment(options, rows(options.validation), 1e-4);

const rows = (validation: Dataset<unknown> | undefined): StepSourceKind => ({
  name: "rows",
  needsReference: false,
  async open(parts, config) {
    const { train_on, reduction, loss_type: lossType } = config.sft;
    const limit = lengthLimit(config, parts.contextWindow);
    const meter = openTextMeter(parts.chat);
    const read = (task: Task) => readRow(task.row, task.origin);
    const give = (task: Task) =>
      ofRow(task, async (): Promise<GivenRow> => {
        const { trajectory, ...counts } = await limited(rowSteps(read(task), parts, train_on), "row", limit);
        return { task, trajectories: [trajectory], ...counts };
      });
    const check = async (task: Task, renders: boolean) => {
      const example = read(task);
      await checkExample(example, parts, train_on, renders);
      return strangeness(example);
    };
    for (const dataset of [parts.tasks, validation])
      if (dataset) await checkRows(dataset, limit, check, give, parts.warn);
    const source: StepSource = {
      phase: "rows",
      samples: false,
      next: async (step) => nextLesson(parts, give, step, limit.most),
      update: (input, context) => learnRows(parts, input, meter, { reduction, lossType }, context),
    };
    if (validation) source.validate = () => measureRows(parts, validation, meter, give, config.data.val_batch_size);
    return source;
  },
});

function strangeness(example: Example): string | undefined {
  if (example.kind !== "chat") return undefined;
  const calls = example.messages.flatMap(({ toolCalls = [] }) => toolCalls);
  if (calls.length > 0 && example.tools.length === 0) return "call tools, but have no tools";
  // A table has the keys of all calls in each call, unless the arguments are JSON.
  if (calls.some((call) => Object.values(call.arguments).includes(null)))
    return "have null arguments in calls of tools, which are learned; leave them out, in a table by arguments as JSON text";
  return undefined;
}

async function nextLesson(
  { tasks, options }: StepSourceParts,
  give: (task: Task) => Promise<GivenRow>,
  step: number,
  most: number,
) {
  const drawn = takeTasks(tasks, options.tasks, step);
  return toStepInput(await Promise.all(drawn.tasks.map(give)), drawn.epoch, most);
}

async function learnRows(
  { models, options: settings }: StepSourceParts,
  { batch }: StepInput,
  meter: TextMeter,
  options: LikelihoodOptions,
  context: Parameters<StepSource["update"]>[1],
) {
  const update = await takeSteps(
    models.learner,
    batch,
    (part) => likelihoodLoss(part, { ...options, isText: meter.isText }),
    settings.update,
    context,
  );
  const { "sft/text_nll": nats, ...metrics } = update.metrics;
  if (nats !== undefined) {
    const { tokens, bytes } = meter.measure(batch.sequences);
    Object.assign(metrics, bitsPerByte("sft/bits_per_byte", nats * tokens, bytes));
  }
  return { ...update, metrics: { ...metrics, "sft/tokens": batch.totals.tokens } };
}

/** `val/loss` is the mean over all trained tokens, regardless of `sft.reduction`. */
async function measureRows(
  { models }: StepSourceParts,
  dataset: Dataset<unknown>,
  meter: TextMeter,
  give: (task: Task) => Promise<GivenRow>,
  batchSize: number,
): Promise<Record<string, number>> {
  const sums = { loss: 0, tokens: 0, text: 0, bytes: 0 };
  for (const tasks of batches(dataset, batchSize)) {
    const given = await Promise.all(tasks.map(give));
    const { batch } = toStepInput(given, 0, Number.POSITIVE_INFINITY);
    if (batch.sequences.length === 0) continue;
    const { logprobs } = await models.learner.forward(batch.sequences, {});
    const ids = batch.sequences.flatMap((sequence) => [...trainedTokens(sequence)]);
    for (const [index, logprob] of logprobs.entries()) {
      sums.loss -= logprob;
      if (meter.isText(ids[index]!)) sums.text -= logprob;
    }
    sums.tokens += logprobs.length;
    sums.bytes += meter.measure(batch.sequences).bytes;
  }
  const loss = sums.loss / sums.tokens;
  return {
    "val/log_likelihood": -loss,
    "val/loss": loss,
    ...bitsPerByte("val/bits_per_byte", sums.text, sums.bytes),
    "val/tokens": sums.tokens,
  };
}
