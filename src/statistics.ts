/** Means, deviations and percentiles of plain numbers, in float64. */

/** NaN of nothing: callers leave a figure out rather than report it. */
export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * Standard deviation about the mean. Exactly 0 when all values are equal, whatever rounding does to their mean.
 *
 * @param ddof 0 divides by n (population), 1 by n - 1 (sample; NaN of a single value)
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
  const below = sorted[Math.floor(position)]!;
  const above = sorted[Math.ceil(position)]!;
  return below + (above - below) * (position - Math.floor(position));
}

/** `{name}/mean`, `{name}/max`, `{name}/min`; nothing at all when there are no values. */
export function spread(name: string, values: readonly number[]): Record<string, number> {
  if (values.length === 0) return {};
  return {
    [`${name}/mean`]: mean(values),
    [`${name}/max`]: values.reduce((most, value) => Math.max(most, value)),
    [`${name}/min`]: values.reduce((least, value) => Math.min(least, value)),
  };
}
