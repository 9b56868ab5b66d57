/** The policy term of a loss, a stretch of sequences at a time: places a row within outputs and batch, has the loss fill it. */
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

type Floats = Float32Array | Float64Array;

/** Where a sequence is, and what it counts. */
export interface Place {
  sequence: number;
  /** Where its outputs begin. */
  start: number;
  /** Of each token's loss. */
  weight: number;
  /** Tokens that the term is of: all trained ones, or so many of largest entropy. */
  count: number;
}

export type TermSums = Pick<LossRow, "clipped" | "capped" | "kl"> & { loss: number };

/**
 * Writes the slopes of the sequences at `places` into `slopes`, where their outputs are, and answers with the weighted
 * loss.
 *
 * @param sequences all that the outputs are of
 */
export type PolicyTerm = (
  outputs: TokenOutputs,
  sequences: Int32Array,
  places: readonly Place[],
  slopes: Floats,
) => TermSums;

export function policyTerm(batch: TrainingBatch, options: PolicyLossOptions): PolicyTerm {
  const settings = new Map(allLosses(options).map((loss) => [loss, settingsOf(options, loss)]));
  const { rolloutWeights = null, oldLogprobs, advantages, offsets, roles } = batch;
  // A sequence's ratio is a geometric mean in gmpo, and so is then its weight.
  const geometric = settings.has("gmpo") && rolloutWeights ? geometricMeans(rolloutWeights, offsets) : null;

  return (outputs, sequences, places, slopes) => {
    const marked = markTokens(batch, options, outputs, sequences);
    const sums: TermSums = { loss: 0, clipped: 0, capped: 0, kl: 0 };
    for (const stretch of stretchesOf(batch, options, places)) {
      const { sequence, start } = stretch[0]!;
      const from = offsets[sequence]!;
      const trained = offsets[sequence + 1]! - from;
      const loss = lossOf(options, roles[sequence]!);
      const { weight, weights, weightsAt } = weightsOf(
        stretch,
        loss === "gmpo" ? geometric : rolloutWeights,
        from,
        slopes,
      );
      const row: LossRow = {
        count: stretch.reduce((sum, { count }) => sum + count, 0),
        at: start,
        oldAt: oldLogprobs === undefined ? start : from,
        from,
        weightsAt,
        logprobs: outputs.logprobs,
        old: oldLogprobs ?? outputs.logprobs,
        advantages,
        weights,
        weight,
        marked,
        slopes,
        clipped: 0,
        capped: 0,
        kl: 0,
      };
      const positions = choosePositions(options, outputs, trained, start, row.count);
      const evaluate = isCustom(loss)
        ? customEvaluation(loss, batch, outputs, { start, from }, positions)
        : definitionOf(loss).evaluate;
      const own = settings.get(loss)!;
      sums.loss +=
        positions === null ? evaluate(row, own) : evaluateChosen(row, positions, trained, () => evaluate(row, own));
      sums.clipped += row.clipped;
      sums.capped += row.capped;
      sums.kl += row.kl;
    }
    return sums;
  };
}

/**
 * Sequences that are evaluated at once, because one long call costs less than many short ones: those of one loss that lie
 * one behind the other, in the outputs as in the batch, unless the loss or the choice by entropy looks at each by itself.
 */
function stretchesOf(batch: TrainingBatch, options: PolicyLossOptions, places: readonly Place[]): Place[][] {
  const { offsets, roles } = batch;
  const stretches: Place[][] = [];
  let last: Place | undefined;
  for (const place of places) {
    const loss = lossOf(options, roles[place.sequence]!);
    const joins =
      last !== undefined &&
      last.start + last.count === place.start &&
      offsets[last.sequence]! + last.count === offsets[place.sequence] &&
      lossOf(options, roles[last.sequence]!) === loss &&
      !(choosesByEntropy(options) || isCustom(loss) || definitionOf(loss).couplesTokens);
    if (joins) stretches.at(-1)!.push(place);
    else stretches.push([place]);
    last = place;
  }
  return stretches;
}

/** One weight for all tokens of a stretch, or one for each. */
function weightsOf(
  stretch: readonly Place[],
  rolloutWeights: Float32Array | null,
  from: number,
  slopes: Floats,
): Pick<LossRow, "weight" | "weights" | "weightsAt"> {
  const { weight } = stretch[0]!;
  if (stretch.every((place) => place.weight === weight)) return { weight, weights: rolloutWeights, weightsAt: from };
  const tokens = stretch.reduce((sum, { count }) => sum + count, 0);
  const weights = slopes instanceof Float64Array ? new Float64Array(tokens) : new Float32Array(tokens);
  let at = 0;
  for (const place of stretch) {
    weights.fill(place.weight, at, at + place.count);
    at += place.count;
  }
  if (rolloutWeights === null) return { weight: 1, weights, weightsAt: 0 };
  for (let token = 0; token < tokens; token++) weights[token]! *= rolloutWeights[from + token]!;
  return { weight: 1, weights, weightsAt: 0 };
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
  if (row.weights !== null) row.weights = chosen(row.weights, row.weightsAt);
  if (row.marked !== null) row.marked = Uint8Array.from(chosen(row.marked, at));
  row.slopes = new Float64Array(positions.length);
  row.at = 0;
  row.oldAt = 0;
  row.from = 0;
  row.weightsAt = 0;
  const loss = evaluate();
  slopes.fill(0, at, at + trained);
  positions.forEach((position, index) => {
    slopes[at + position] = row.slopes[index]!;
  });
  return loss;
}

/** A custom loss gets its inputs as arrays of its sequence alone, and gives losses and slopes without weights. */
function customEvaluation(
  loss: CustomLoss,
  { samplerLogprobs, referenceLogprobs }: TrainingBatch,
  { entropy }: TokenOutputs,
  { start, from }: { start: number; from: number },
  positions: Int32Array | null,
): SequenceLoss {
  return (row) => {
    const { count, at, slopes, weight, weights, weightsAt } = row;
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
      const w = weights === null ? weight : weight * weights[weightsAt + token]!;
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
