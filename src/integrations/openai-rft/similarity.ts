/**
 * Similarities of two texts from 0 to 1: rapidfuzz' `fuzz.ratio` divided by 100, and the F-measure of rouge-score without
 * stemming. Compared with values of these packages, see scripts/proofs/recorders/text-similarity.py.
 */
import type { similarityMetrics } from "./schema.ts";

type Metric = (typeof similarityMetrics)[number];

export function similarity(metric: Metric, input: string, reference: string): number {
  if (metric === "fuzzy_match") return fuzzy(Array.from(input), Array.from(reference));
  const [said, wanted] = [words(input), words(reference)];
  if (metric === "rouge_l") return measure(commonLength(said, wanted), said.length, wanted.length);
  return overlap(said, wanted, Number(metric.slice("rouge_".length)));
}

/** Two empty texts are equal. */
function fuzzy(left: readonly string[], right: readonly string[]): number {
  const length = left.length + right.length;
  return length === 0 ? 1 : (2 * commonLength(left, right)) / length;
}

const words = (text: string): string[] =>
  text
    .toLowerCase()
    .split(/[^a-z0-9]+/)
    .filter((word) => word !== "");

function overlap(said: readonly string[], wanted: readonly string[], size: number): number {
  const count = (list: readonly string[]) => {
    const counts = new Map<string, number>();
    for (let start = 0; start + size <= list.length; start++) {
      const gram = list.slice(start, start + size).join(" ");
      counts.set(gram, (counts.get(gram) ?? 0) + 1);
    }
    return counts;
  };
  const [left, right] = [count(said), count(wanted)];
  let common = 0;
  for (const [gram, number] of left) common += Math.min(number, right.get(gram) ?? 0);
  return measure(common, Math.max(0, said.length - size + 1), Math.max(0, wanted.length - size + 1));
}

/** The harmonic mean of precision and recall. */
function measure(common: number, said: number, wanted: number): number {
  return common === 0 ? 0 : (2 * common) / (said + wanted);
}

/**
 * The length of the longest common subsequence. Each word of 32 bits holds 32 places of `left`, so long replies take
 * a thirty-second of the time of a table.
 */
function commonLength(left: readonly string[], right: readonly string[]): number {
  const size = Math.ceil(left.length / 32);
  const places = new Map<string, Uint32Array>();
  // The places of each of a long reply's many symbols would take gigabytes.
  const wanted = new Set(right);
  for (const [index, symbol] of left.entries()) {
    if (!wanted.has(symbol)) continue;
    const mask = places.get(symbol) ?? new Uint32Array(size);
    mask[index >>> 5]! |= 1 << (index & 31);
    places.set(symbol, mask);
  }
  // A place is 0 if a common subsequence ends there.
  const open = new Uint32Array(size).fill(0xffffffff);
  for (const symbol of right) {
    const mask = places.get(symbol);
    if (mask === undefined) continue;
    let carry = 0;
    for (let word = 0; word < size; word++) {
      const [places32, found] = [open[word]!, open[word]! & mask[word]!];
      const sum = places32 + (found >>> 0) + carry;
      carry = sum > 0xffffffff ? 1 : 0;
      open[word] = sum | (places32 & ~mask[word]!);
    }
  }
  let common = 0;
  for (let index = 0; index < left.length; index++) common += (open[index >>> 5]! >>> (index & 31)) & 1 ? 0 : 1;
  return common;
}
