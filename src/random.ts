/** Seeds. Every random draw of a run derives from (seed, step, task, rollout, turn), so a resumed run repeats it. */
import { hash } from "node:crypto";

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
