/** Operations on training batches: denominators, selections of sequences and tokens, minibatches. */

import { append } from "../append.ts";
import { valuesAt } from "../arrays.ts";
import { concatenate } from "../concatenate.ts";
import { permutation } from "../random.ts";
import type { BatchTotals, Sequence, TrainingBatch } from "./types.ts";

/** `[S + 1]` running totals of `counts`, from 0: sequence `s` owns `[offsets[s], offsets[s + 1])`. */
export function offsetsOf(counts: readonly number[]): Int32Array {
  const offsets = new Int32Array(counts.length + 1);
  counts.forEach((count, index) => {
    offsets[index + 1] = offsets[index]! + count;
  });
  return offsets;
}

/** `[S]` number of trained tokens of each sequence. */
export const countsOf = (offsets: Int32Array): Int32Array =>
  offsets.subarray(1).map((end, sequence) => end - offsets[sequence]!);

/** `[S]` the part of `values` that each sequence owns. The parts share its memory. */
export function rowsOf<Values extends Float32Array | Float64Array | Uint8Array>(
  values: Values,
  offsets: Int32Array,
): Values[] {
  return Array.from(offsets.subarray(1), (end, sequence) => values.subarray(offsets[sequence], end) as Values);
}

/** The positions whose next token is trained, in ascending order. */
export const trainedPositions = (trained: Uint8Array): number[] =>
  [...trained.keys()].filter((position) => trained[position] !== 0);

/** `[N]` the tokens whose log-probabilities are the outputs of a sequence that has no other targets. */
export const trainedTokens = ({ tokens, trained }: Sequence): Int32Array =>
  Int32Array.from(trainedPositions(trained), (position) => tokens[position + 1]!);

/** Denominators of the sequences with these offsets. */
export function totalsOf(offsets: Int32Array): BatchTotals {
  const totals: BatchTotals = { tokens: 0, sequences: 0, longest: 0 };
  for (const trained of countsOf(offsets)) {
    totals.tokens += trained;
    if (trained > 0) totals.sequences++;
    totals.longest = Math.max(totals.longest, trained);
  }
  return totals;
}

/**
 * The batch of the chosen sequences, in the given order. Its `totals` stay those of the whole batch, so a loss over the
 * selection is that part of the loss over the batch. `asWhole` makes it a batch of its own.
 */
export function selectSequences(batch: TrainingBatch, indices: ArrayLike<number>): TrainingBatch {
  const { offsets } = batch;
  const gather = (values: Float32Array) =>
    concatenate(
      Float32Array,
      Array.from(indices, (index) => values.subarray(offsets[index], offsets[index + 1])),
    );
  const selected: TrainingBatch = {
    sequences: valuesAt(batch.sequences, indices),
    offsets: offsetsOf(valuesAt(countsOf(offsets), indices)),
    advantages: gather(batch.advantages),
    samplerLogprobs: gather(batch.samplerLogprobs),
    ...optionalArrays(batch, gather),
    groups: Int32Array.from(valuesAt(batch.groups, indices)),
    roles: valuesAt(batch.roles, indices),
    totals: batch.totals,
  };
  if (batch.processed) selected.processed = true;
  return selected;
}

/**
 * The batch without some of its trained tokens, which stay in their sequences as context. The denominators count the
 * tokens that are left.
 *
 * @param keep `[N]` 1: the token is still trained
 */
export function keepTokens(batch: TrainingBatch, keep: Uint8Array): TrainingBatch {
  if (keep.every((kept) => kept === 1)) return batch;
  const gather = (values: Float32Array) => values.filter((_, token) => keep[token] === 1);
  let token = 0;
  const sequences = batch.sequences.map((sequence) => ({
    ...sequence,
    trained: sequence.trained.map((flag) => (flag === 1 ? keep[token++]! : 0)),
  }));
  const counts = sequences.map(({ trained }) => trained.reduce((sum, flag) => sum + flag, 0));
  const offsets = offsetsOf(counts);
  return {
    ...batch,
    sequences,
    offsets,
    advantages: gather(batch.advantages),
    samplerLogprobs: gather(batch.samplerLogprobs),
    ...optionalArrays(batch, gather),
    totals: totalsOf(offsets),
  };
}

const optionalNames = ["oldLogprobs", "referenceLogprobs", "rolloutWeights", "returns", "oldValues", "scores"] as const;

/** Applies `gather` to the arrays over tokens that not every batch has. */
function optionalArrays(batch: TrainingBatch, gather: (values: Float32Array) => Float32Array): Partial<TrainingBatch> {
  return Object.fromEntries(
    optionalNames.flatMap((name) => (batch[name] === undefined ? [] : [[name, gather(batch[name])]])),
  );
}

/** The same sequences as a batch of its own: the denominators count only them. */
export function asWhole(batch: TrainingBatch): TrainingBatch {
  return { ...batch, totals: totalsOf(batch.offsets) };
}

/**
 * Splits a batch into at most `numMinibatches` minibatches of nearly the same number of sequences, none empty, each with
 * denominators of its own. Groups stay whole, so that their prompts are computed once. If there are fewer groups than
 * minibatches, the largest groups are halved. The same seed gives the same split.
 */
export function splitBatch(batch: TrainingBatch, numMinibatches: number, seed: number): TrainingBatch[] {
  if (batch.sequences.length === 0) return [];
  const units = unitsOf(batch, numMinibatches);
  const shares: number[][] = Array.from({ length: Math.min(numMinibatches, units.length) }, () => []);
  // Largest first keeps the shares even; the shuffle before the stable sort decides among equals.
  const order = valuesAt(units, permutation(units.length, seed));
  for (const unit of order.sort((a, b) => b.length - a.length)) {
    const smallest = shares.reduce((least, share) => (share.length < least.length ? share : least));
    smallest.push(...unit);
  }
  return shares.map((share) =>
    asWhole(
      selectSequences(
        batch,
        share.sort((a, b) => a - b),
      ),
    ),
  );
}

/** The sequences that stay together: those of each group, or halves of groups if there are too few. */
function unitsOf(batch: TrainingBatch, wanted: number): number[][] {
  const byGroup = new Map<number, number[]>();
  for (const [sequence, group] of batch.groups.entries()) append(byGroup, group, sequence);
  const units = [...byGroup.values()];
  while (units.length < wanted) {
    const largest = units.reduce((most, unit) => (unit.length > most.length ? unit : most));
    if (largest.length === 1) break;
    units.push(largest.splice(Math.ceil(largest.length / 2)));
  }
  return units;
}
