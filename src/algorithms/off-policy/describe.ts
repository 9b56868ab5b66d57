/** Statistics of the distance between two policies on sampled tokens. Names and constants are verl's. */
import { mean } from "../../statistics.ts";
import { rowsOf } from "../../trajectories/batch.ts";

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
export const smoothedMean = (values: Floats): number => sum(values) / (values.length + countEps);

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
export function describe(
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
export const prefixed = (
  prefix: string,
  metrics: Record<string, number>,
  renamed: Readonly<Record<string, string>> = {},
): Record<string, number> =>
  Object.fromEntries(Object.entries(metrics).map(([name, value]) => [`${prefix}${renamed[name] ?? name}`, value]));
