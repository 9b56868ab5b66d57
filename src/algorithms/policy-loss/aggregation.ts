/** How token losses become one number: the weight of each token, which is constant within a sequence. */
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
  /** Sum over all tokens by a constant (Dr. GRPO); not divided by the number of sequences. */
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
