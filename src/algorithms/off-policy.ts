/**
 * Off-policy correction: importance weights, rejection of tokens and sequences, and the distance between sampler and
 * trainer.
 */
import { UserError } from "../base/errors.ts";
import { mean } from "../base/values.ts";
import { rowsOf } from "../trajectories/batch.ts";

// Statistics of the distance between two policies on sampled tokens. Names and constants are verl's.

type Floats = Float32Array | Float64Array;

/** Log-ratios are clamped to this before they are exponentiated. */
const maxLogRatio = 20;

/** Added to counts, so that no divisor is 0. */
export const countEps = 1e-8;

export const clampLog = (logRatio: number): number => Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio);
export const expBounded = (logRatio: number): number => Math.exp(clampLog(logRatio));

/** `[N]` `trainer - sampler`, in float64. */
export const logRatios = (trainer: Float32Array, sampler: Float32Array): Float64Array =>
  Float64Array.from(trainer).map((logprob, token) => logprob - sampler[token]!);

export function sum(values: Floats): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

/** 0 for an empty array. */
const smoothedMean = (values: Floats): number => sum(values) / (values.length + countEps);

export const sequenceMeans = (values: Floats, offsets: Int32Array): Float64Array =>
  Float64Array.from(rowsOf<Floats>(values, offsets), smoothedMean);

export const largest = (values: Float64Array): number =>
  values.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY);

export const smallest = (values: Float64Array): number =>
  values.reduce((least, value) => Math.min(least, value), Number.POSITIVE_INFINITY);

interface Bounds {
  low: number;
  high: number;
  /** The value if both policies agree. */
  ideal: number;
}

/**
 * @param tokens `[N]` a value per token
 * @param sequences `[S]` the values per sequence that `tokens` repeats; `null` if the values are those of tokens
 * @param means `[S]` the sequences' mean values
 */
function describe(
  tokens: Float64Array,
  sequences: Float64Array | null,
  means: Float64Array,
  { low, high, ideal }: Bounds,
): Record<string, number> {
  const units = sequences ?? tokens;
  const unitCount = sequences === null ? tokens.length + countEps : sequences.length;
  const isHigh = (value: number) => value > high;
  const isLow = (value: number) => value < low;
  const clamped = tokens.map((value) => Math.min(Math.max(value, low), high));
  const clampedMean = smoothedMean(clamped);
  const squares = smoothedMean(clamped.map((value) => value * value));
  const scaled = smoothedMean(clamped.map((value) => (value / (clampedMean + countEps)) ** 2));
  const center = mean(means);
  return {
    mean: smoothedMean(tokens),
    max: largest(units),
    min: smallest(units),
    fraction_high: units.filter(isHigh).length / unitCount,
    fraction_low: units.filter(isLow).length / unitCount,
    std: tokens.length > 1 ? Math.sqrt(Math.max(squares - clampedMean * clampedMean, 0)) : 0,
    eff_sample_size: 1 / scaled,
    seq_mean: center,
    seq_std: means.length > 1 ? Math.sqrt(sum(means.map((value) => (value - center) ** 2)) / (means.length - 1)) : 0,
    seq_max: largest(means),
    seq_min: smallest(means),
    seq_max_deviation: largest(means.map((value) => Math.abs(value - ideal))),
    seq_fraction_high: means.filter(isHigh).length / means.length,
    seq_fraction_low: means.filter(isLow).length / means.length,
  };
}

/** The metrics with a prefix, some under another name. */
const prefixed = (
  prefix: string,
  metrics: Record<string, number>,
  renamed: Readonly<Record<string, string>> = {},
): Record<string, number> =>
  Object.fromEntries(Object.entries(metrics).map(([name, value]) => [`${prefix}${renamed[name] ?? name}`, value]));

// Importance weights that correct for the distance between sampler and trainer. Names and constants are verl's.

export interface ImportanceOptions {
  /** `sequence` gives each token the product of its sequence's ratios. */
  level: "token" | "sequence";
  /** Larger weights are truncated to this. */
  cap: number;
  /** `mask`: weights above the cap become 0 instead. */
  beyond?: "truncate" | "mask";
  /** Divide by the mean weight, of tokens or of sequences. */
  normalize?: boolean;
}

/**
 * Truncated importance sampling (https://fengyao.notion.site/off-policy-rl): `exp(trainer - sampler)` of each token, at
 * most `cap`. Metrics describe the weights before truncation: `mean`, `max`, `min`, the shares above `cap` and below
 * `1 / cap`, `eff_sample_size`, and `seq_*` of the sequences' mean weights.
 *
 * @param trainer `[N]` log-probabilities, detached
 * @param sampler `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` weights; metrics are empty if there are no tokens
 */
export function importanceWeights(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  { level, cap, beyond = "truncate", normalize = false }: ImportanceOptions,
): { weights: Float32Array; metrics: Record<string, number> } {
  if (trainer.length === 0) return { weights: trainer.slice(), metrics: {} };
  const logs = logRatios(trainer, sampler);
  let products: Float64Array | null = null;
  if (level === "sequence") {
    const rows = rowsOf(logs, offsets);
    products = Float64Array.from(rows.map(sum), expBounded);
    for (const row of rows) row.fill(sum(row));
  }
  const ratios = logs.map(expBounded);
  const described = describe(ratios, products, sequenceMeans(ratios, offsets), { low: 1 / cap, high: cap, ideal: 1 });
  const metrics = prefixed("rollout_is_", described, {
    fraction_high: "ratio_fraction_high",
    fraction_low: "ratio_fraction_low",
  });
  let weights = trainer.slice();
  weights.set(ratios.map((ratio) => (ratio <= cap ? ratio : beyond === "mask" ? 0 : cap)));
  if (normalize) {
    const factor = level === "token" ? smoothedMean(weights) : meanOfSequences(weights, offsets);
    const divisor = factor > countEps ? factor : 1;
    metrics.rollout_is_batch_norm_factor = divisor;
    weights = weights.map((weight) => weight / divisor);
  }
  return { weights, metrics };
}

function meanOfSequences(weights: Float32Array, offsets: Int32Array): number {
  const rows = rowsOf(weights, offsets).filter((row) => row.length > 0);
  return rows.reduce((total, row) => total + smoothedMean(row), 0) / rows.length;
}

// Rejects tokens for which the sampler's policy is too far from the trained policy.

export interface RejectionRule {
  /** What is compared with the bounds: each token's value, or the sum, mean or largest value of a sequence. */
  level: "token" | "seq_sum" | "seq_mean" | "seq_max";
  /** Value of a token, an estimate of KL(sampler || trainer): k1 = -d, k2 = d^2/2, k3 = e^d - 1 - d, d = trainer - sampler. */
  estimator: "k1" | "k2" | "k3";
  /** Values from `low` to `high` are kept. */
  low: number;
  high: number;
}

const estimators = {
  k1: (logRatio: number) => -logRatio,
  k2: (logRatio: number) => logRatio ** 2 / 2,
  k3: (logRatio: number) => Math.expm1(logRatio) - logRatio,
};

/**
 * @param trainer `[N]` log-probabilities, detached
 * @param sampler `[N]`
 * @param offsets `[S + 1]`
 * @returns `[N]` 1: the token satisfies every rule; and metrics of each rule
 */
export function rejectionMask(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  rules: readonly RejectionRule[],
): { keep: Uint8Array; metrics: Record<string, number> } {
  const keep = new Uint8Array(trainer.length).fill(1);
  const metrics: Record<string, number> = {};
  if (trainer.length === 0) return { keep, metrics };
  for (const rule of rules) {
    const { tokens, sequences } = valuesOf(trainer, sampler, offsets, rule);
    const own = new Uint8Array(tokens.length);
    for (const [token, value] of tokens.entries()) {
      if (value >= rule.low && value <= rule.high) own[token] = 1;
      else keep[token] = 0;
    }
    const means = sequences ?? sequenceMeans(tokens, offsets);
    const { eff_sample_size: _, ...described } = describe(tokens, sequences, means, { ...rule, ideal: 0 });
    const name = `rollout_rs_${rule.level}_${rule.estimator}_`;
    Object.assign(metrics, prefixed(name, { ...described, ...maskedShares(own, offsets) }));
  }
  return { keep, metrics: { ...metrics, ...prefixed("rollout_rs_", maskedShares(keep, offsets)) } };
}

/** The value that the rule compares with its bounds, of each token and, unless the level is `token`, of each sequence. */
function valuesOf(
  trainer: Float32Array,
  sampler: Float32Array,
  offsets: Int32Array,
  { level, estimator }: RejectionRule,
): { tokens: Float64Array; sequences: Float64Array | null } {
  const tokens = logRatios(trainer, sampler).map((logRatio) => estimators[estimator](clampLog(logRatio)));
  if (level === "token") return { tokens, sequences: null };
  const sequences = rowsOf(tokens, offsets).map((row) => {
    const value = ofSequence[level](row);
    row.fill(value);
    return value;
  });
  return { tokens, sequences: Float64Array.from(sequences) };
}

const ofSequence = {
  seq_sum: sum,
  seq_mean: smoothedMean,
  seq_max: (row: Float64Array) => (row.length === 0 ? 0 : largest(row)),
};

function maskedShares(keep: Uint8Array, offsets: Int32Array): Record<string, number> {
  const rows = rowsOf(keep, offsets);
  const masked = keep.reduce((count, kept) => count + 1 - kept, 0);
  return {
    masked_fraction: masked / (keep.length + countEps),
    seq_masked_fraction: rows.filter((row) => row.includes(0)).length / rows.length,
  };
}

/** The bounds of a rule's value; undefined if the threshold is not valid for it. */
export function rejectionBounds(
  name: string,
  threshold: string | number | undefined,
): Pick<RejectionRule, "low" | "high"> | undefined {
  const isRatio = name.endsWith("_k1");
  const bounds = String(threshold ?? "")
    .split("_")
    .map(Number);
  if (bounds.length > (isRatio ? 2 : 1) || bounds.some((bound) => !(bound > 0))) return undefined;
  const [first = Number.NaN, second] = bounds;
  if (!isRatio) return { low: Number.NEGATIVE_INFINITY, high: first };
  return { low: Math.log(second === undefined ? 1 / first : first), high: Math.log(second ?? first) };
}

/**
 * Rules by verl's names, each with a threshold. The thresholds of k1 are ratios: `"low_high"`, or `high`, whose lower bound
 * is `1 / high`. The others are upper bounds of the value.
 *
 * @throws UserError for an unknown rule or a threshold that is not a positive number
 * @example
 * rejectionRules(["seq_mean_k2", "token_k1"], [0.05, "0.6_1.5"]);
 */
export function rejectionRules(names: readonly string[], thresholds: readonly (string | number)[]): RejectionRule[] {
  return names.map((name, index) => {
    const [, level, estimator] = /^(token|seq_sum|seq_mean|seq_max)_(k1|k2|k3)$/.exec(name) ?? [];
    if (level === undefined || (level === "seq_max" && estimator === "k1")) {
      throw new UserError(`the rejection rule "${name}" does not exist`, {
        hint: "token, seq_sum or seq_mean with _k1, _k2 or _k3; seq_max with _k2 or _k3",
      });
    }
    const bounds = rejectionBounds(name, thresholds[index]);
    if (bounds === undefined) {
      throw new UserError(`the rejection rule ${name} has no valid threshold in ${JSON.stringify(thresholds)}`, {
        hint: 'a positive number for each rule; k1 also takes "low_high"',
      });
    }
    return { level, estimator, ...bounds } as RejectionRule;
  });
}

// Distance between the log-probabilities of sampler and trainer for the same tokens under the same weights.

/**
 * Over tokens, with `d = trainer - sampler`:
 * `rollout/logprob_diff_mean` and `_max` of |d|; `rollout/kl_sampler_trainer_k1` = mean of -d, `_k2` = mean of d^2 / 2
 * and `_k3` = mean of e^d - 1 - d, which estimate KL(sampler || trainer); `rollout/effective_sample_size` =
 * (sum w)^2 / (N sum w^2) with w = e^d, which is 1 if they agree. Pass log-probabilities from before the first update;
 * later ones also measure the update.
 *
 * @param trainer `[N]`
 * @param sampler `[N]`, of the same tokens
 * @returns an empty record if there are no tokens
 */
export function samplerMismatch(trainer: Float32Array, sampler: Float32Array): Record<string, number> {
  const tokens = trainer.length;
  if (tokens === 0) return {};
  let absolute = 0;
  let largest = 0;
  let opposite = 0;
  let half = 0;
  let k3 = 0;
  let weights = 0;
  let squares = 0;
  for (const difference of logRatios(trainer, sampler)) {
    const bounded = Math.min(difference, maxLogRatio);
    const weight = Math.exp(bounded);
    absolute += Math.abs(difference);
    largest = Math.max(largest, Math.abs(difference));
    opposite -= difference;
    half += difference ** 2 / 2;
    k3 += Math.expm1(bounded) - bounded;
    weights += weight;
    squares += weight ** 2;
  }
  return {
    "rollout/logprob_diff_mean": absolute / tokens,
    "rollout/logprob_diff_max": largest,
    "rollout/kl_sampler_trainer_k1": opposite / tokens,
    "rollout/kl_sampler_trainer_k2": half / tokens,
    "rollout/kl_sampler_trainer_k3": k3 / tokens,
    "rollout/effective_sample_size": squares === 0 ? 0 : weights ** 2 / (tokens * squares),
  };
}
