/**
 * e^x without a branch. Half of what a loss costs is the exponential, and half of that the branches of `Math.exp`, which
 * no processor foresees among the log-ratios of a batch. A table and a short polynomial have none.
 */

const largest = 24;
const perUnit = 32 / Math.LN2;
const unit = Math.LN2 / 32;
const half = Math.ceil(largest * perUnit);
/** `e^(n unit)` for n in -half..half. */
const powers = Float64Array.from({ length: 2 * half + 1 }, (_, index) => Math.exp((index - half) * unit));

/** Within 1e-13 of `Math.exp`, relatively, and exactly 1 at 0. */
export function exp(x: number): number {
  if (!(x > -largest && x < largest)) return Math.exp(x);
  const n = Math.floor(x * perUnit + 0.5);
  const r = x - n * unit;
  return powers[n + half]! * (1 + r * (1 + r * (0.5 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120))))));
}
