import { permutation } from "../random.ts";
import { asWhole, selectSequences } from "./batch.ts";
import type { TrainingBatch } from "./types.ts";

/**
 * Splits a batch into at most `numMinibatches` minibatches of nearly the same number of sequences, none empty, each with
 * denominators of its own. Groups stay whole, so that their prompts are computed once. If there are fewer groups than
 * minibatches, the largest groups are halved. The same seed gives the same split.
 */
export function splitBatch(batch: TrainingBatch, numMinibatches: number, seed: number): TrainingBatch[] {
  if (batch.sequences.length === 0) return [];
  const units = unitsOf(batch, numMinibatches);
  const shares: number[][] = Array.from({ length: Math.min(numMinibatches, units.length) }, () => []);
  // Largest first keeps the shares even; the shuffle before the stable sort decides among equals.
  const order = permutation(units.length, seed).map((index) => units[index]!);
  for (const unit of order.sort((a, b) => b.length - a.length)) {
    const smallest = shares.reduce((least, share) => (share.length < least.length ? share : least));
    smallest.push(...unit);
  }
  return shares.map((share) =>
    asWhole(
      selectSequences(
        batch,
        share.sort((a, b) => a - b),
      ),
    ),
  );
}

/** The sequences that stay together: those of each group, or halves of groups if there are too few. */
function unitsOf(batch: TrainingBatch, wanted: number): number[][] {
  const byGroup = new Map<number, number[]>();
  batch.groups.forEach((group, sequence) => {
    const members = byGroup.get(group);
    if (members === undefined) byGroup.set(group, [sequence]);
    else members.push(sequence);
  });
  const units = [...byGroup.values()];
  while (units.length < wanted) {
    const largest = units.reduce((most, unit) => (unit.length > most.length ? unit : most));
    if (largest.length === 1) break;
    units.push(largest.splice(Math.ceil(largest.length / 2)));
  }
  return units;
}
