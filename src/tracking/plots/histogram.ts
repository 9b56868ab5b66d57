/** The histogram that TensorBoard and Weights & Biases show. */
import type { Distributions } from "../events.ts";

export interface Histogram {
  min: number;
  max: number;
  count: number;
  sum: number;
  sumSquares: number;
  /** `[counts.length + 1]`, ascending. */
  edges: number[];
  counts: number[];
}

/**
 * Bins of equal width from the smallest to the largest value. NaN and infinities are left out.
 * @returns undefined if no value is finite
 */
export function histogram(values: Iterable<number>, bins = 64): Histogram | undefined {
  const finite = Float64Array.from(values).filter(Number.isFinite);
  let [min, max, sum, sumSquares] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0, 0];
  for (const value of finite) {
    min = Math.min(min, value);
    max = Math.max(max, value);
    sum += value;
    sumSquares += value * value;
  }
  if (finite.length === 0) return undefined;
  // Equal values are in the middle of bins around them.
  const [low, high] = min < max ? [min, max] : [min - 0.5, max + 0.5];
  const counts = new Array<number>(bins).fill(0);
  for (const value of finite) {
    const bin = Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins));
    counts[bin] = counts[bin]! + 1;
  }
  const edges = Array.from({ length: bins + 1 }, (_, index) => low + ((high - low) * index) / bins);
  return { min, max, count: finite.length, sum, sumSquares, edges, counts };
}

/** The histogram of each kind of value that has one. */
export function histograms(values: Distributions): [name: string, histogram: Histogram][] {
  return Object.entries(values).flatMap(([name, list]: [string, readonly number[]]): [string, Histogram][] => {
    const found = histogram(list);
    return found === undefined ? [] : [[name, found]];
  });
}
