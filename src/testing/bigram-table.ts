/** The arithmetic of the smallest possible language model: one row of logits for each previous token. */
import type { OutputGradient } from "../algorithms/types.ts";
import type { TokenRows } from "../backends/engine.ts";
import { uniforms } from "../random.ts";
import { offsetsOf } from "../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../trajectories/types.ts";
import { drawToken, rankTokens } from "./draw-token.ts";

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
const entropyOf = (logs: Float64Array): number =>
  -logs.reduce((sum, log) => sum + (Number.isFinite(log) ? Math.exp(log) * log : 0), 0);

/** Calls `visit` with each output in order: its index, the token before, and its token. */
export function eachTrained(
  sequences: readonly Sequence[],
  visit: (output: number, previous: number, token: number) => void,
): void {
  let output = 0;
  for (const { tokens, trained, targets } of sequences) {
    let own = 0;
    trained.forEach((flag, position) => {
      const count = targets ? flag : Number(flag !== 0);
      for (let index = 0; index < count; index++) {
        visit(output++, tokens[position]!, targets ? targets[own++]! : tokens[position + 1]!);
      }
    });
  }
}

/** The `count` most likely tokens at each output's position, most likely first, and their log-probabilities. */
export function tableMostLikely(table: Table, size: number, sequences: readonly Sequence[], count: number): TokenRows {
  const width = Math.min(count, size);
  return tokenRows(table, size, sequences, width, (logs) => rankTokens(logs).slice(0, width));
}

export function tableDraws(
  table: Table,
  size: number,
  sequences: readonly Sequence[],
  { count, temperature, seed }: { count: number; temperature: number; seed: number },
): TokenRows {
  const next = uniforms(seed);
  const unfiltered = { temperature, topK: -1, topP: 1, minP: 0 };
  return tokenRows(table, size, sequences, count, (logs) =>
    Array.from({ length: count }, () => {
      const token = drawToken(logs, unfiltered, next());
      return { token, log: logs[token]! };
    }),
  );
}

function tokenRows(
  table: Table,
  size: number,
  sequences: readonly Sequence[],
  count: number,
  choose: (logs: Float64Array) => { token: number; log: number }[],
): TokenRows {
  const rows: { token: number; log: number }[] = [];
  eachTrained(sequences, (_, previous) => {
    rows.push(...choose(logProbabilities(table, size, previous)));
  });
  return {
    tokens: Int32Array.from(rows, ({ token }) => token),
    logprobs: Float32Array.from(rows, ({ log }) => log),
    count,
  };
}

/** `[S + 1]` where each sequence's outputs begin. */
export function outputOffsets(sequences: readonly Sequence[]): Int32Array {
  return offsetsOf(
    sequences.map(({ trained, targets }) => targets?.length ?? trained.reduce((sum, flag) => sum + (flag ? 1 : 0), 0)),
  );
}

/** Log-probability, entropy and concentration at each trained position. */
export function tableOutputs(
  table: Table,
  size: number,
  sequences: readonly Sequence[],
): Required<Omit<TokenOutputs, "values">> {
  const offsets = outputOffsets(sequences);
  const logprobs = new Float32Array(offsets.at(-1)!);
  const entropy = new Float32Array(logprobs.length);
  const concentration = new Float32Array(logprobs.length);
  eachTrained(sequences, (output, previous, token) => {
    const logs = logProbabilities(table, size, previous);
    logprobs[output] = logs[token]!;
    entropy[output] = entropyOf(logs);
    concentration[output] = logs.reduce((sum, log) => sum + Math.exp(2 * log), 0);
  });
  return { offsets, logprobs, entropy, concentration };
}

/**
 * Adds to `into` a loss's gradient with respect to the table, from its gradient with respect to the outputs:
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
