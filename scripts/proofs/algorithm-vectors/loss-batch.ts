/** Converts recorded matrices with a mask into the ragged batches of losses, and gradients back into matrices. */
import type { PolicyLossOptions } from "../../../src/algorithms/policy-loss.ts";
import { policyLoss } from "../../../src/algorithms/policy-loss.ts";
import type { LossValue } from "../../../src/algorithms/types.ts";
import { offsetsOf, totalsOf } from "../../../src/trajectories/batch.ts";
import type { BatchTotals, TokenOutputs, TrainingBatch } from "../../../src/trajectories/types.ts";

export type Matrix = number[][];

export interface LossInputs {
  logprobs: Matrix;
  old_logprobs: Matrix;
  advantages: Matrix;
  mask: Matrix;
  ref_logprobs?: Matrix | null;
  entropy?: Matrix;
}

/** Losses also accept float64 values, which the recordings contain. */
export const floats = (values: readonly number[]) => Float64Array.from(values) as unknown as Float32Array;

/** The entries of a matrix where the mask is 1, row after row. */
export function ragged(matrix: Matrix, mask: Matrix): Float32Array {
  return floats(matrix.flatMap((row, b) => row.filter((_, t) => mask[b]![t] === 1)));
}

export const raggedOffsets = (mask: Matrix): Int32Array =>
  offsetsOf(mask.map((row) => row.filter((flag) => flag === 1).length));

/** A matrix of the mask's shape with `values` where it is 1, and `elsewhere` where it is 0. */
export function spread(values: ArrayLike<number>, mask: Matrix, elsewhere = 0): Matrix {
  let next = 0;
  return mask.map((row) => row.map((flag) => (flag === 1 ? values[next++]! : elsewhere)));
}

const plain: PolicyLossOptions = {
  lossFn: "ppo",
  epsClip: 0.2,
  epsClipHigh: null,
  aggMode: "token-mean",
};

export function batchOf(inputs: LossInputs, totals: Partial<BatchTotals> = {}): TrainingBatch {
  const { mask } = inputs;
  const offsets = raggedOffsets(mask);
  return {
    sequences: mask.map(() => ({ tokens: new Int32Array(0), trained: new Uint8Array(0) })),
    offsets,
    advantages: ragged(inputs.advantages, mask),
    samplerLogprobs: ragged(inputs.old_logprobs, mask),
    oldLogprobs: ragged(inputs.old_logprobs, mask),
    ...(inputs.ref_logprobs ? { referenceLogprobs: ragged(inputs.ref_logprobs, mask) } : {}),
    groups: new Int32Array(mask.length),
    roles: mask.map(() => "all"),
    totals: { ...totalsOf(offsets), longest: mask[0]!.length, ...totals },
  };
}

export interface Evaluated {
  loss: number;
  grad_logprob: Matrix;
  grad_entropy: Matrix;
  /** Sum by count of each metric. */
  metrics: Record<string, number>;
  /** The same for each row, in order; rows without tokens are skipped. */
  rows: Record<string, number>[];
  tokens: number;
}

export function evaluateLoss(
  inputs: LossInputs,
  options: Partial<PolicyLossOptions>,
  batch = batchOf(inputs),
): Evaluated {
  const loss = policyLoss(batch, { ...plain, ...options });
  const outputs: TokenOutputs = {
    offsets: batch.offsets,
    logprobs: ragged(inputs.logprobs, inputs.mask),
    ...(inputs.entropy ? { entropy: ragged(inputs.entropy, inputs.mask) } : {}),
  };
  const value = loss.evaluate(outputs, Int32Array.from(batch.sequences.keys()));
  const rowValue = (row: number): Record<string, number> => {
    const [from, to] = [batch.offsets[row]!, batch.offsets[row + 1]!];
    const own = { offsets: Int32Array.of(0, to - from), logprobs: outputs.logprobs.slice(from, to) };
    return metricValues(loss.evaluate(own, Int32Array.of(row)));
  };
  const { gradient } = value;
  return {
    loss: value.loss,
    grad_logprob: spread(gradient.logprobs, inputs.mask),
    grad_entropy: spread(gradient.entropy ?? new Float64Array(gradient.logprobs.length), inputs.mask),
    metrics: metricValues(value),
    rows: loss.coupled || outputs.entropy ? [] : inputs.mask.map((_, row) => rowValue(row)),
    tokens: batch.offsets.at(-1)!,
  };
}

const metricValues = ({ metrics }: LossValue): Record<string, number> =>
  Object.fromEntries(Object.entries(metrics).map(([name, { sum, count }]) => [name, sum / count]));

/** Multiplies all values by a factor, e.g. the number of data-parallel ranks. */
export const times = (factor: number, matrix: Matrix): Matrix =>
  matrix.map((row) => row.map((entry) => entry * factor));
