/** The k-th largest of many values, without sorting them. */

/**
 * Quickselect. Where few of many are wanted, only what is larger than those found so far is looked at a second time.
 *
 * @param count 1..values.length
 */
export function largestThreshold(values: Float64Array, count: number): number {
  if (count * 8 > values.length) return select(values.slice(), values.length, count);
  const best = new Float64Array(4 * count);
  let used = 0;
  let bound = Number.NEGATIVE_INFINITY;
  for (let index = 0; index < values.length; index++) {
    const value = values[index]!;
    if (!(value > bound) && used >= count) continue;
    best[used++] = value;
    if (used < best.length) continue;
    bound = select(best, used, count);
    best.copyWithin(0, used - count, used);
    used = count;
  }
  return select(best, used, count);
}

/** The `count`-th largest of the first `size` values, which are rearranged: no smaller one is behind it. */
function select(values: Float64Array, size: number, count: number): number {
  const wanted = size - count;
  let [low, high] = [0, size - 1];
  while (low < high) {
    const pivot = values[(low + high) >> 1]!;
    let [from, to] = [low, high];
    while (from <= to) {
      while (values[from]! < pivot) from++;
      while (values[to]! > pivot) to--;
      if (from > to) break;
      const swapped = values[from]!;
      values[from++] = values[to]!;
      values[to--] = swapped;
    }
    if (wanted <= to) high = to;
    else if (wanted >= from) low = from;
    else break;
  }
  return values[wanted]!;
}
