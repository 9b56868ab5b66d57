/** How far apart two policies are on sampled tokens, as weights and as metrics. Names and constants are verl's. */
import { mean } from "../statistics.ts";

/** Log-ratios are held within this before they are exponentiated. */
const maxLogRatio = 20;

/** verl adds it to counts, so that it never divides by zero. */
const countEps = 1e-8;

export interface ImportanceOptions {
  /** `sequence`: the product of a sequence's ratios stands on each of its tokens. */
  level: "token" | "sequence";
  /** Larger weights are truncated to this. */
  cap: number;
  /** `mask`: weights above the cap become 0 instead. */
  beyond?: "truncate" | "mask";
  /** Divide by the mean weight, of tokens or of sequences. */
  normalize?: boolean;
}

/**
 * `exp(trainer - sampler)` of each token, truncated: what the sampler drew, weighted as if the trainer's policy had
 * (truncated importance sampling; https://fengyao.notion.site/off-policy-rl). Metrics are of the weights before
 * truncation: `mean`, `max`, `min`, the shares beyond `cap` and below `1 / cap`, `eff_sample_size`, and `seq_*` of the
 * sequences' mean weights.
 *
 * @param trainer `[N]` log-probabilities, detached
 * @param sampler `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` weights; metrics without a token are empty
 */
export function importanceWeights(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  { level, cap, beyond = "truncate", normalize = false }: ImportanceOptions,
): { weights: Float32Array; metrics: Record<string, number> } {
  const weights = trainer.slice();
  if (weights.length === 0) return { weights, metrics: {} };
  const ratios = new Float64Array(weights.length);
  const rows = level === "sequence" ? new Float64Array(offsets.length - 1) : null;
  eachSequence(offsets, (sequence, from, to) => {
    let sum = 0;
    for (let token = from; token < to; token++) {
      const logRatio = trainer[token]! - sampler[token]!;
      sum += logRatio;
      ratios[token] = bounded(logRatio);
    }
    if (rows === null) return;
    rows[sequence] = bounded(sum);
    ratios.fill(rows[sequence]!, from, to);
  });
  const figures = describe(ratios, rows, sequenceMeans(ratios, offsets), { low: 1 / cap, high: cap, ideal: 1 });
  const metrics = prefixed("rollout_is_", figures, {
    fraction_high: "ratio_fraction_high",
    fraction_low: "ratio_fraction_low",
  });
  for (let token = 0; token < weights.length; token++) {
    const ratio = ratios[token]!;
    weights[token] = ratio <= cap ? ratio : beyond === "mask" ? 0 : cap;
  }
  if (normalize) {
    const factor = level === "token" ? smoothedMean(weights) : meanOfSequences(weights, offsets);
    metrics.rollout_is_batch_norm_factor = factor > countEps ? factor : 1;
    for (let token = 0; token < weights.length; token++) weights[token]! /= metrics.rollout_is_batch_norm_factor;
  }
  return { weights, metrics };
}

export function sequenceMeans(values: Floats, offsets: Int32Array): Float64Array {
  const means = new Float64Array(offsets.length - 1);
  eachSequence(offsets, (sequence, from, to) => {
    means[sequence] = smoothedMean(values.subarray(from, to));
  });
  return means;
}

interface Bounds {
  low: number;
  high: number;
  /** What a figure is where both policies agree. */
  ideal: number;
}

/**
 * @param tokens `[N]` a figure on each token
 * @param rows `[S]` where the figure is one of sequences, that figure; else `null`
 * @param means `[S]` the sequences' mean figures
 */
export function describe(
  tokens: Float64Array,
  rows: Float64Array | null,
  means: Float64Array,
  { low, high, ideal }: Bounds,
): Record<string, number> {
  const units = rows ?? tokens;
  const held = tokens.map((value) => Math.min(Math.max(value, low), high));
  const heldMean = smoothedMean(held);
  const squares = smoothedMean(held.map((value) => value * value));
  const scaled = smoothedMean(held.map((value) => (value / (heldMean + countEps)) ** 2));
  const center = mean(means);
  return {
    mean: smoothedMean(tokens),
    max: largest(units),
    min: -largest(units.map((value) => -value)),
    fraction_high: share(units, rows === null, (value) => value > high),
    fraction_low: share(units, rows === null, (value) => value < low),
    std: tokens.length > 1 ? Math.sqrt(Math.max(squares - heldMean * heldMean, 0)) : 0,
    eff_sample_size: 1 / scaled,
    seq_mean: center,
    seq_std: means.length > 1 ? Math.sqrt(sum(means.map((value) => (value - center) ** 2)) / (means.length - 1)) : 0,
    seq_max: largest(means),
    seq_min: -largest(means.map((value) => -value)),
    seq_max_deviation: largest(means.map((value) => Math.abs(value - ideal))),
    seq_fraction_high: share(means, false, (value) => value > high),
    seq_fraction_low: share(means, false, (value) => value < low),
  };
}

/**
 * What the two policies make of the same tokens: perplexities, `kl` and `k3_kl` of KL(sampler || trainer), chi-squared
 * of the ratios by token and by sequence.
 *
 * @returns nothing when there is no token
 */
export function offPolicyMetrics(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
): Record<string, number> {
  const sequences = offsets.length - 1;
  if (trainer.length === 0) return {};
  const training = sequenceMeans(trainer, offsets);
  const rollout = sequenceMeans(sampler, offsets);
  const products = new Float64Array(sequences);
  let opposite = 0;
  let k3 = 0;
  let squares = 0;
  eachSequence(offsets, (sequence, from, to) => {
    let logProduct = 0;
    for (let token = from; token < to; token++) {
      const logRatio = trainer[token]! - sampler[token]!;
      const held = clampLog(logRatio);
      logProduct += logRatio;
      opposite -= logRatio;
      k3 += Math.expm1(held) - held;
      squares += Math.exp(2 * held);
    }
    products[sequence] = Math.exp(2 * clampLog(logProduct));
  });
  const count = trainer.length + countEps;
  const differences = rollout.map((value, sequence) => value - training[sequence]!);
  const perplexity = (means: Float64Array) => mean(means.map((value) => Math.exp(-value)));
  return {
    training_ppl: perplexity(training),
    training_log_ppl: -mean(training),
    kl: opposite / count,
    k3_kl: k3 / count,
    rollout_ppl: perplexity(rollout),
    rollout_log_ppl: -mean(rollout),
    log_ppl_diff: mean(differences),
    log_ppl_abs_diff: mean(differences.map(Math.abs)),
    log_ppl_diff_max: largest(differences),
    log_ppl_diff_min: -largest(differences.map((value) => -value)),
    ppl_ratio: mean(differences.map(Math.exp)),
    chi2_token: squares / count - 1,
    chi2_seq: mean(products) - 1,
  };
}

export function eachSequence(offsets: Int32Array, visit: (sequence: number, from: number, to: number) => void): void {
  for (let sequence = 0; sequence + 1 < offsets.length; sequence++) {
    visit(sequence, offsets[sequence]!, offsets[sequence + 1]!);
  }
}

export const clampLog = (logRatio: number): number => Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio);
const bounded = (logRatio: number): number => Math.exp(clampLog(logRatio));

type Floats = Float32Array | Float64Array;

function sum(values: Floats): number {
  let total = 0;
  for (let index = 0; index < values.length; index++) total += values[index]!;
  return total;
}

/** verl's mean: `countEps` is added to the count, so an empty array gives 0. */
export const smoothedMean = (values: Floats): number => sum(values) / (values.length + countEps);

function meanOfSequences(weights: Float32Array, offsets: Int32Array): number {
  let total = 0;
  let sequences = 0;
  eachSequence(offsets, (_, from, to) => {
    if (from === to) return;
    total += smoothedMean(weights.subarray(from, to));
    sequences++;
  });
  return total / sequences;
}

const largest = (values: Float64Array): number =>
  values.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY);

function share(values: Float64Array, ofTokens: boolean, test: (value: number) => boolean): number {
  const found = values.reduce((count, value) => count + (test(value) ? 1 : 0), 0);
  return found / (values.length + (ofTokens ? countEps : 0));
}

/** The figures under longer names. */
export function prefixed(
  prefix: string,
  figures: Record<string, number>,
  renamed: Readonly<Record<string, string>> = {},
): Record<string, number> {
  return Object.fromEntries(
    Object.entries(figures).map(([name, value]) => [`${prefix}${renamed[name] ?? name}`, value]),
  );
}
