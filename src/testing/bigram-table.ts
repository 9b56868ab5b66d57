/** The arithmetic of the smallest language model there is: one row of logits for each previous token. */
import type { OutputGradient } from "../algorithms/types.ts";
import type { Sequence, TokenOutputs } from "../trajectories/types.ts";

/** `[V * V]`; entry `previous * V + next` is the logit of `next` after `previous`. */
export type Table = Float64Array;

/** `[V]` log-probabilities of the token after `previous` (nats). */
export function logProbabilities(table: Table, size: number, previous: number): Float64Array {
  const row = table.subarray(previous * size, (previous + 1) * size);
  const peak = row.reduce((left, right) => Math.max(left, right), Number.NEGATIVE_INFINITY);
  const logSum = peak + Math.log(row.reduce((sum, logit) => sum + Math.exp(logit - peak), 0));
  return row.map((logit) => logit - logSum);
}

/** Entropy of a row of log-probabilities (nats). */
export const entropyOf = (logs: Float64Array): number =>
  -logs.reduce((sum, log) => sum + (Number.isFinite(log) ? Math.exp(log) * log : 0), 0);

/** Calls `visit` with each trained position in order: its index among the outputs, the token before, and its token. */
function eachTrained(sequences: readonly Sequence[], visit: (output: number, previous: number, token: number) => void) {
  let output = 0;
  for (const { tokens, trained } of sequences) {
    trained.forEach((flag, position) => {
      if (flag) visit(output++, tokens[position]!, tokens[position + 1]!);
    });
  }
}

/** Log-probability and entropy at each trained position. */
export function tableOutputs(
  table: Table,
  size: number,
  sequences: readonly Sequence[],
): Required<Omit<TokenOutputs, "values">> {
  const counts = sequences.map(({ trained }) => trained.reduce((sum, flag) => sum + (flag ? 1 : 0), 0));
  const offsets = Int32Array.from([0, ...counts]);
  for (let index = 1; index < offsets.length; index++) offsets[index]! += offsets[index - 1]!;
  const logprobs = new Float32Array(offsets.at(-1)!);
  const entropy = new Float32Array(logprobs.length);
  eachTrained(sequences, (output, previous, token) => {
    const logs = logProbabilities(table, size, previous);
    logprobs[output] = logs[token]!;
    entropy[output] = entropyOf(logs);
  });
  return { offsets, logprobs, entropy };
}

/**
 * Adds to `into` the gradient by the table of a loss whose gradient by the outputs is given:
 * d logprob(y) / d logit(k) = [k = y] - p(k), and d entropy / d logit(k) = -p(k) (log p(k) + entropy).
 */
export function pullBack(
  table: Table,
  size: number,
  sequences: readonly Sequence[],
  gradient: OutputGradient,
  into: Table,
): void {
  eachTrained(sequences, (output, previous, token) => {
    const logs = logProbabilities(table, size, previous);
    const byLogprob = gradient.logprobs[output]!;
    const byEntropy = gradient.entropy?.[output] ?? 0;
    const entropy = byEntropy === 0 ? 0 : entropyOf(logs);
    into[previous * size + token]! += byLogprob;
    logs.forEach((log, next) => {
      into[previous * size + next]! -= Math.exp(log) * (byLogprob + byEntropy * (log + entropy));
    });
  });
}
