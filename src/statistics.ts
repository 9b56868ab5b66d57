/** Means, deviations and percentiles of plain numbers, in float64. */

import { own } from "./own.ts";

/** NaN for an empty array, so that callers omit the metric instead of reporting 0. */
export function mean(values: ArrayLike<number>): number {
  let sum = 0;
  for (let index = 0; index < values.length; index++) sum += values[index] ?? 0;
  return sum / values.length;
}

/**
 * Standard deviation around the mean. Exactly 0 if all values are equal, despite rounding of their mean.
 *
 * @param ddof 0 divides by n (population), 1 by n - 1 (sample; NaN for a single value)
 */
export function standardDeviation(values: readonly number[], ddof: 0 | 1 = 0): number {
  if (values.length > ddof && allEqual(values)) return 0;
  const center = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - center) ** 2, 0) / (values.length - ddof));
}

export function allEqual(values: readonly number[]): boolean {
  return values.every((value) => value === values[0]);
}

/** Linear interpolation between the two nearest ranks; `rank` in 0..100, at least one value. */
export function percentile(values: readonly number[], rank: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const position = ((sorted.length - 1) * rank) / 100;
  const [below = Number.NaN, above = below] = sorted.slice(Math.floor(position), Math.floor(position) + 2);
  return below + (above - below) * (position - Math.floor(position));
}

/** `{name}/mean`, `{name}/max`, `{name}/min`; empty if there are no values. */
export function spread(name: string, values: readonly number[]): Record<string, number> {
  if (values.length === 0) return {};
  return {
    [`${name}/mean`]: mean(values),
    [`${name}/max`]: values.reduce((most, value) => Math.max(most, value)),
    [`${name}/min`]: values.reduce((least, value) => Math.min(least, value)),
  };
}

/** Metrics as sums and counts, so that the parts of a batch can be added. The reported value is `sum / count`. */
export type MetricSums = Record<string, { sum: number; count: number }>;

export function addMetrics(parts: readonly MetricSums[]): MetricSums {
  const total: MetricSums = {};
  for (const [name, { sum, count }] of parts.flatMap((part) => Object.entries(part))) {
    const earlier = own(total, name) ?? { sum: 0, count: 0 };
    total[name] = { sum: earlier.sum + sum, count: earlier.count + count };
  }
  return total;
}

export const averageMetrics = (sums: MetricSums): Record<string, number> =>
  Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]));
