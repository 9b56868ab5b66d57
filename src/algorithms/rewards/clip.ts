/** Bounds on rewards and advantages. */

/** Clips values to `[-bound, bound]` and returns the share that was outside. A bound of 0 or less is ignored. */
export function clipSymmetric<Values extends number[] | Float32Array | Float64Array>(
  values: Values,
  bound: number,
): { values: Values; fraction: number } {
  if (bound <= 0 || values.length === 0) return { values, fraction: 0 };
  let outside = 0;
  const clipped = values.map((value) => {
    if (Math.abs(value) > bound) outside++;
    return Math.min(Math.max(value, -bound), bound);
  }) as Values;
  return { values: clipped, fraction: outside / values.length };
}
