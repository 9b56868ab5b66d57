/** Small functions on plain values: lists, arrays, objects, means, sums of metrics, seeds. */
import { hash } from "node:crypto";

/** Adds a value to the list of a key. */
export function append<Key, Value>(lists: Map<Key, Value[]>, key: Key, value: Value): void {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}

/** Refuses positions without a value. */
function valueAt<Value>(values: ArrayLike<Value>, position: number): Value {
  const value = values[position];
  if (value === undefined) throw new RangeError(`no value at position ${position}`);
  return value;
}

/** The values at these positions, in their order. */
export const valuesAt = <Value>(values: ArrayLike<Value>, positions: Iterable<number> | ArrayLike<number>): Value[] =>
  Array.from(positions, (position) => valueAt(values, position));

/** The values of the first array, each with the value at the same position of the second one. */
export const zip = <Left, Right>(left: ArrayLike<Left>, right: ArrayLike<Right>): [Left, Right][] =>
  Array.from(left, (value, position) => [value, valueAt(right, position)]);

type NumberArray = Uint8Array | Int16Array | Int32Array | Float32Array | Float64Array;

/** A new array of this type, with the values of the given arrays one after another. */
export function concatenate<Whole extends NumberArray>(
  type: new (length: number) => Whole,
  arrays: readonly ArrayLike<number>[],
): Whole {
  const whole = new type(arrays.reduce((total, { length }) => total + length, 0));
  let position = 0;
  for (const array of arrays) {
    whole.set(array, position);
    position += array.length;
  }
  return whole;
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The value of a record's own key. Names from outside, such as `constructor`, must not reach the prototype. */
export function ownValue<Value>(record: Readonly<Record<string, Value>> | undefined, key: string): Value | undefined {
  return record !== undefined && Object.hasOwn(record, key) ? record[key] : undefined;
}

/** JSON with sorted keys: the same text for equal values, regardless of the order of their keys. */
export const sortedJson = (value: unknown): string =>
  JSON.stringify(value ?? null, (_key, inner: unknown) =>
    isObject(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([left], [right]) => (left < right ? -1 : 1)))
      : inner,
  );

// Means, deviations and percentiles of plain numbers, in float64.

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
    const earlier = ownValue(total, name) ?? { sum: 0, count: 0 };
    total[name] = { sum: earlier.sum + sum, count: earlier.count + count };
  }
  return total;
}

export const averageMetrics = (sums: MetricSums): Record<string, number> =>
  Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]));

// Seeds. Every random draw of a run derives from (seed, step, task, rollout, turn), so a resumed run repeats it.

/**
 * One 48-bit seed from any mix of names and numbers, e.g. `deriveSeed(seed, "rollout", step, task, rollout, turn)`.
 * The parts are hashed (SHA-256), so similar parts give unrelated seeds.
 */
export function deriveSeed(...parts: readonly (string | number)[]): number {
  return Number.parseInt(hash("sha256", JSON.stringify(parts)).slice(0, 12), 16);
}

/** A generator of uniforms in [0, 1) (mulberry32) for shuffles and choices; not for sampling tokens. */
export function uniforms(seed: number): () => number {
  let state = (seed ^ Math.floor(seed / 2 ** 32)) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * An integer from `low` to `high`, both included.
 *
 * @example
 * const sums = generated("sums", 1000, (_index, random) => ({ left: randomInteger(random, 10, 99) }));
 */
export function randomInteger(random: () => number, low: number, high: number): number {
  return low + Math.floor(random() * (high - low + 1));
}

/** A shuffled copy of 0..count-1 (Fisher-Yates), the same for the same seed. */
export function permutation(count: number, seed: number): number[] {
  const order = Array.from({ length: count }, (_, index) => index);
  const next = uniforms(seed);
  for (let last = count - 1; last > 0; last--) {
    const other = Math.floor(next() * (last + 1));
    [order[last], order[other]] = [order[other]!, order[last]!];
  }
  return order;
}
