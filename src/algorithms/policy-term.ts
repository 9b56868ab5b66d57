/** The policy term of a loss, one sequence at a time: places a row within outputs and batch, has the loss fill it. */
import { RunError } from "../errors.ts";
import type { TokenOutputs, TrainingBatch } from "../trajectories/types.ts";
import type { CustomLoss, LossInput } from "./custom-loss.ts";
import {
  allLosses,
  choosesByEntropy,
  definitionOf,
  isCustom,
  lossOf,
  type PolicyLossOptions,
  settingsOf,
} from "./loss-choice.ts";
import { geometricMeans } from "./losses/gmpo.ts";
import { highEntropyPositions } from "./losses/high-entropy.ts";
import type { LossRow, SequenceLoss } from "./losses/sequence-loss.ts";
import type { PolicyLossName } from "./policy-losses.ts";

export interface PolicyTerm {
  /** The figures that `evaluate` left behind of the last sequence. */
  readonly row: LossRow;
  /**
   * Writes a sequence's slopes into `slopes`, where its outputs are, and answers with its weighted loss.
   *
   * @param start where the sequence's outputs begin
   * @param weight of each token's loss
   * @param count tokens that the term is of: all trained ones, or so many of largest entropy
   * @param marks `[N]` of the outputs, from `mark`
   */
  evaluate(
    outputs: TokenOutputs,
    slopes: Float32Array,
    place: { sequence: number; start: number; weight: number; count: number },
    marks: Uint8Array | null,
  ): number;
  /** For losses that choose among all tokens of the batch. */
  mark(outputs: TokenOutputs, sequences: Int32Array): Uint8Array | null;
}

export function policyTerm(batch: TrainingBatch, options: PolicyLossOptions): PolicyTerm {
  const settings = new Map(allLosses(options).map((loss) => [loss, settingsOf(options, loss)]));
  const { rolloutWeights = null, oldLogprobs, advantages, offsets } = batch;
  // A sequence's ratio is a geometric mean in gmpo, and so is then its weight.
  const geometric = settings.has("gmpo") && rolloutWeights ? geometricMeans(rolloutWeights, offsets) : null;
  const none = new Float32Array(0);
  const row: LossRow = {
    ...{ count: 0, at: 0, oldAt: 0, from: 0, weight: 0, clipped: 0, capped: 0, kl: 0 },
    ...{ logprobs: none, old: none, advantages: none, slopes: none, weights: null, marked: null },
  };

  return {
    row,
    evaluate(outputs, slopes, { sequence, start, weight, count }, marks) {
      const loss = lossOf(options, batch.roles[sequence]!);
      const from = offsets[sequence]!;
      row.count = count;
      row.weight = weight;
      row.clipped = 0;
      row.capped = 0;
      row.kl = 0;
      row.at = start;
      row.from = from;
      row.oldAt = oldLogprobs === undefined ? start : from;
      row.logprobs = outputs.logprobs;
      row.old = oldLogprobs ?? outputs.logprobs;
      row.advantages = advantages;
      row.weights = loss === "gmpo" ? geometric : rolloutWeights;
      row.marked = marks;
      row.slopes = slopes;
      const positions = choosePositions(options, outputs, offsets[sequence + 1]! - from, start, count);
      const evaluate = isCustom(loss)
        ? customEvaluation(loss, batch, outputs, { start, from }, positions)
        : definitionOf(loss).evaluate;
      const own = settings.get(loss)!;
      if (positions === null) return evaluate(row, own);
      return evaluateChosen(row, positions, offsets[sequence + 1]! - from, () => evaluate(row, own));
    },
    mark: (outputs, sequences) => markTokens(batch, options, outputs, sequences),
  };
}

/** Of a sequence's tokens those of largest entropy; `null`: all. */
function choosePositions(
  options: PolicyLossOptions,
  { entropy }: TokenOutputs,
  trained: number,
  start: number,
  count: number,
): Int32Array | null {
  if (!choosesByEntropy(options)) return null;
  return highEntropyPositions(Float64Array.from(entropy!.subarray(start, start + trained)), count);
}

/** The loss over some of a sequence's tokens, as if the others were not there; they get the slope 0. */
function evaluateChosen(row: LossRow, positions: Int32Array, trained: number, evaluate: () => number): number {
  const { at, slopes } = row;
  const chosen = (values: ArrayLike<number>, from: number) =>
    Float64Array.from(positions, (position) => values[from + position]!);
  row.logprobs = chosen(row.logprobs, at);
  row.old = chosen(row.old, row.oldAt);
  row.advantages = chosen(row.advantages, row.from);
  if (row.weights !== null) row.weights = chosen(row.weights, row.from);
  if (row.marked !== null) row.marked = Uint8Array.from(chosen(row.marked, at));
  row.slopes = new Float64Array(positions.length);
  row.at = 0;
  row.oldAt = 0;
  row.from = 0;
  const loss = evaluate();
  slopes.fill(0, at, at + trained);
  positions.forEach((position, index) => {
    slopes[at + position] = row.slopes[index]!;
  });
  return loss;
}

type Floats = Float32Array | Float64Array;

/** A custom loss gets its inputs as arrays of its sequence alone, and gives losses and slopes without weights. */
function customEvaluation(
  loss: CustomLoss,
  { samplerLogprobs, referenceLogprobs }: TrainingBatch,
  { entropy }: TokenOutputs,
  { start, from }: { start: number; from: number },
  positions: Int32Array | null,
): SequenceLoss {
  return (row) => {
    const { count, at, slopes, weight, weights } = row;
    const pick = (values: Floats, first: number) =>
      Float64Array.from({ length: count }, (_, token) => values[first + (positions?.[token] ?? token)]!);
    const own = (values: Floats, first: number) => Float64Array.from(values.subarray(first, first + count));
    const logprob = own(row.logprobs, at);
    const old = own(row.old, row.oldAt);
    const makers: Record<LossInput, () => Float64Array> = {
      advantage: () => own(row.advantages, row.from),
      logRatio: () => logprob.map((value, token) => value - old[token]!),
      oldLogprob: () => old,
      samplerLogprob: () => pick(samplerLogprobs, from),
      referenceLogprob: () => pick(referenceLogprobs!, from),
      entropy: () => pick(entropy!, start),
    };
    const inputs = Object.fromEntries(loss.inputs.map((input) => [input, makers[input]()]));
    const values = loss.evaluate({ ...inputs, logprob });
    let total = 0;
    for (let token = 0; token < count; token++) {
      const w = weights === null ? weight : weight * weights[row.from + token]!;
      total += w * values.losses[token]!;
      slopes[at + token] = w * values.slopes[token]!;
      row.kl += old[token]! - logprob[token]!;
    }
    return total;
  };
}

/** @throws RunError when it is not given the whole batch */
function markTokens(
  batch: TrainingBatch,
  options: PolicyLossOptions,
  outputs: TokenOutputs,
  sequences: Int32Array,
): Uint8Array | null {
  const marking = allLosses(options).flatMap((loss) => (isCustom(loss) || !definitionOf(loss).mark ? [] : [loss]));
  if (marking.length === 0) return null;
  if (sequences.length !== batch.sequences.length) {
    throw new RunError(`the loss "${marking[0]}" needs the outputs of the whole batch at once`);
  }
  const old = batch.oldLogprobs ?? outputs.logprobs;
  const inOrder = sequences.every((sequence, index) => sequence === index);
  if (inOrder && allLosses(options).length === 1) {
    const [loss] = marking as [PolicyLossName];
    const tokens = { logprobs: outputs.logprobs, old, advantages: batch.advantages };
    return definitionOf(loss).mark!(tokens, settingsOf(options, loss));
  }
  const marks = new Uint8Array(outputs.logprobs.length);
  for (const loss of marking) {
    const at: number[] = [];
    const tokens = { logprobs: [] as number[], old: [] as number[], advantages: [] as number[] };
    for (let index = 0; index < sequences.length; index++) {
      const sequence = sequences[index]!;
      if (lossOf(options, batch.roles[sequence]!) !== loss) continue;
      const shift = batch.offsets[sequence]! - outputs.offsets[index]!;
      for (let output = outputs.offsets[index]!; output < outputs.offsets[index + 1]!; output++) {
        at.push(output);
        tokens.logprobs.push(outputs.logprobs[output]!);
        tokens.old.push(batch.oldLogprobs === undefined ? outputs.logprobs[output]! : old[output + shift]!);
        tokens.advantages.push(batch.advantages[output + shift]!);
      }
    }
    const chosen = definitionOf(loss).mark!(tokens, settingsOf(options, loss));
    for (let token = 0; token < at.length; token++) marks[at[token]!] = chosen[token]!;
  }
  return marks;
}
