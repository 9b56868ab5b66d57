/**
 * The arithmetic of the smallest possible language model, one row of logits for each previous token: sampling, outputs, gradients, AdamW.
 */
import type { OutputGradient } from "../algorithms/types.ts";
import type { AdamParams, AdapterSpec, SamplingParams, TokenRows } from "../backends/engine.ts";
import { uniforms } from "../base/values.ts";
import { offsetsOf } from "../trajectories/batch.ts";
import type { Sequence, TokenOutputs } from "../trajectories/types.ts";

// One token from a row of log-probabilities.

/** Tokens and their log-probabilities, most likely first. */
export const rankTokens = (logs: Float64Array): { token: number; log: number }[] =>
  Array.from(logs, (log, token) => ({ token, log })).sort(
    (left, right) => right.log - left.log || left.token - right.token,
  );

/**
 * Applies temperature, then top-k, top-p and min-p, each to the tokens that the previous one kept.
 *
 * @param uniform in [0, 1)
 */
export function drawToken(
  logs: Float64Array,
  { temperature, topK, topP, minP }: Pick<SamplingParams, "temperature" | "topK" | "topP" | "minP">,
  uniform: number,
): number {
  const peak = logs.reduce((left, right) => Math.max(left, right));
  if (temperature === 0) return logs.indexOf(peak);
  const ranked = rankTokens(logs).map(({ token, log }) => ({ token, weight: Math.exp((log - peak) / temperature) }));
  const total = (tokens: typeof ranked) => tokens.reduce((sum, { weight }) => sum + weight, 0);

  let kept = topK > 0 ? ranked.slice(0, topK) : ranked;
  if (topP < 1) {
    const enough = topP * total(kept);
    let sum = 0;
    // The token that crosses the threshold is kept.
    kept = kept.filter(({ weight }) => {
      const before = sum;
      sum += weight;
      return before < enough;
    });
  }
  if (minP > 0) kept = kept.filter(({ weight }) => weight >= minP);

  let left = uniform * total(kept);
  let last = 0;
  for (const { token, weight } of kept) {
    left -= weight;
    last = token;
    if (left < 0) break;
  }
  return last;
}

// The arithmetic of the smallest possible language model: one row of logits for each previous token.

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

// The optimizer of the tabular engine.

export interface AdamState {
  steps: number;
  /** Running means of the gradient and of its square, one for each parameter. */
  first: Float64Array;
  second: Float64Array;
}

export const freshAdam = (count: number): AdamState => ({
  steps: 0,
  first: new Float64Array(count),
  second: new Float64Array(count),
});

/** A step that clips the gradient's norm and drops a gradient that is not finite. */
export function clippedAdamStep(
  parameters: Float64Array,
  gradient: Float64Array,
  state: AdamState,
  params: AdamParams,
): { gradNorm: number; applied: boolean } {
  // Single precision, as in other engines, so that the same gradients overflow.
  const gradNorm = Math.fround(Math.sqrt(gradient.reduce((sum, slope) => sum + slope * slope, 0)));
  if (!Number.isFinite(gradNorm)) return { gradNorm, applied: false };
  const scale = params.maxGradNorm > 0 ? Math.min(1, params.maxGradNorm / gradNorm) : 1;
  adamStep(
    parameters,
    gradient.map((slope) => slope * scale),
    state,
    params,
  );
  return { gradNorm, applied: true };
}

/** One step of AdamW (Loshchilov and Hutter 2019), in place; bias correction as in PyTorch. */
function adamStep(parameters: Float64Array, gradient: Float64Array, state: AdamState, params: AdamParams): void {
  const { learningRate, beta1, beta2, eps, weightDecay } = params;
  const { first, second } = state;
  state.steps++;
  const stepSize = learningRate / (1 - beta1 ** state.steps);
  const correction = Math.sqrt(1 - beta2 ** state.steps);
  for (const [index, slope] of gradient.entries()) {
    const mean = beta1 * first[index]! + (1 - beta1) * slope;
    const square = beta2 * second[index]! + (1 - beta2) * slope * slope;
    first[index] = mean;
    second[index] = square;
    const kept = parameters[index]! * (1 - learningRate * weightDecay);
    parameters[index] = kept - (stepSize * mean) / (Math.sqrt(square) / correction + eps);
  }
}

// Which part of a bigram table is trained: all of it, a low-rank change to it, or nothing.

export interface TabularAdapter {
  /** The parameters before training; empty if nothing is trained. */
  initial: Float64Array;
  toTable(parameters: Float64Array): Table;
  /** The gradient with respect to the parameters, from the gradient with respect to the table. */
  pullBack(parameters: Float64Array, byTable: Table): Float64Array;
}

/** @param size the vocabulary's */
export function tabularAdapter(base: Table, size: number, spec: AdapterSpec): TabularAdapter {
  switch (spec.kind) {
    case "none":
      return { initial: new Float64Array(0), toTable: () => base, pullBack: () => new Float64Array(0) };
    case "full":
      return { initial: base, toTable: (parameters) => parameters, pullBack: (_, byTable) => byTable.slice() };
    case "lora":
      return lowRank(base, size, spec);
  }
}

/**
 * table = base + (alpha / rank) B A, after Hu et al. 2021: B `[V, rank]` begins at zero, A `[rank, V]` at random.
 * The parameters are B, then A. All of the spec's targets mean the table, the only matrix.
 */
function lowRank(base: Table, size: number, spec: { rank: number; alpha: number; seed: number }): TabularAdapter {
  const { rank, alpha, seed } = spec;
  const scale = alpha / rank;
  const half = size * rank;
  const next = uniforms(seed);
  const initial = Float64Array.from({ length: 2 * half }, (_, index) => (index < half ? 0 : 2 * next() - 1));

  /** Calls `visit` with the places in B, A and the table that are multiplied with and added to each other. */
  const eachProduct = (visit: (inB: number, inA: number, inTable: number) => void) => {
    for (let row = 0; row < size; row++) {
      for (let between = 0; between < rank; between++) {
        for (let column = 0; column < size; column++) {
          visit(row * rank + between, half + between * size + column, row * size + column);
        }
      }
    }
  };
  return {
    initial,
    toTable(parameters) {
      const table = base.slice();
      eachProduct((inB, inA, inTable) => {
        table[inTable]! += scale * parameters[inB]! * parameters[inA]!;
      });
      return table;
    },
    pullBack(parameters, byTable) {
      const gradient = new Float64Array(parameters.length);
      eachProduct((inB, inA, inTable) => {
        gradient[inB]! += scale * byTable[inTable]! * parameters[inA]!;
        gradient[inA]! += scale * byTable[inTable]! * parameters[inB]!;
      });
      return gradient;
    },
  };
}
