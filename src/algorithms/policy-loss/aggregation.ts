/**
 * How token losses become one number: where the tokens of each sequence are, and their weight, which is constant within a
 * sequence.
 */

import { RunError } from "../../errors.ts";
import type { BatchTotals } from "../../trajectories/types.ts";

export interface AggregationOptions {
  /** Divisor of `seq-mean-token-sum-norm`; the default is the number of trained tokens of the longest sequence. */
  lossScale?: number;
  /** Added to a sequence's token count in `seq-mean-token-mean`, as verl does. */
  countEps?: number;
}

/**
 * @param trained trained tokens of the sequence, at least 1
 * @param totals denominators of the whole batch; because they are fixed, the parts of a batch add up to it
 */
type TokenWeight = (trained: number, totals: BatchTotals, options: AggregationOptions) => number;

/** The modes of verl's `agg_loss`. They are called only for batches with trained tokens, so no divisor is 0. */
export const tokenWeights = {
  /** Every token of the batch counts the same. */
  "token-mean": (_trained, totals) => 1 / totals.tokens,
  /** Sum over a sequence's tokens, mean over sequences. */
  "seq-mean-token-sum": (_trained, totals) => 1 / totals.sequences,
  /** Mean over a sequence's tokens, mean over sequences. */
  "seq-mean-token-mean": (trained, totals, { countEps = 1e-8 }) => 1 / ((trained + countEps) * totals.sequences),
  /** Sum over all tokens divided by a constant (Dr. GRPO); not divided by the number of sequences. */
  "seq-mean-token-sum-norm": (_trained, totals, { lossScale }) => 1 / (lossScale ?? totals.longest),
} as const satisfies Record<string, TokenWeight>;

export type AggregationMode = keyof typeof tokenWeights;

/** The weight of each trained token of a sequence in the batch's loss. */
export function tokenWeight(
  mode: AggregationMode,
  trained: number,
  totals: BatchTotals,
  options: AggregationOptions = {},
): number {
  const weigh: TokenWeight = tokenWeights[mode];
  return trained === 0 ? 0 : weigh(trained, totals, options);
}

/** The trained tokens of a sequence, in a batch and in an engine's outputs. */
export interface MatchedSequence {
  /** Index in the batch. */
  sequence: number;
  /** Number of trained tokens. */
  trained: number;
  /** Index of the first of them in the batch's arrays. */
  from: number;
  /** Index of the first of them in the outputs. */
  start: number;
}

/**
 * @param sequences indices in the batch of the sequences that the outputs belong to
 * @throws RunError if the outputs of a sequence have another length than its trained tokens
 */
export function matchOutputs(
  batchOffsets: Int32Array,
  outputOffsets: Int32Array,
  sequences: Int32Array,
): MatchedSequence[] {
  return Array.from(sequences, (sequence, index) => {
    const [from = 0, end = 0] = batchOffsets.subarray(sequence, sequence + 2);
    const [start = 0, outputEnd = 0] = outputOffsets.subarray(index, index + 2);
    const trained = end - from;
    if (outputEnd - start === trained) return { sequence, trained, from, start };
    throw new RunError(
      `the engine returned ${outputEnd - start} outputs for sequence ${sequence}, which has ${trained} trained tokens`,
    );
  });
}
