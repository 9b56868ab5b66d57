/** The largest of many values. */

/**
 * Positions, ascending, of the `count` largest values; of equal values the first.
 *
 * @param count 0..values.length
 */
export function largestPositions(values: Float64Array, count: number): Int32Array {
  const positions = new Int32Array(count);
  const threshold = values.toSorted().at(-count) ?? Number.NaN;
  let ties = count - values.reduce((above, value) => above + (value > threshold ? 1 : 0), 0);
  let found = 0;
  for (const [position, value] of values.entries()) {
    if (found === count) break;
    if (value > threshold || (value === threshold && ties-- > 0)) positions[found++] = position;
  }
  return positions;
}

/** How many tokens of a sequence the high-entropy selection keeps (arXiv 2506.01939): the share, at least one if any. */
export const highEntropyCount = (count: number, ratio: number): number =>
  count === 0 ? 0 : Math.max(1, Math.floor(count * ratio));
