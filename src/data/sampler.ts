/**
 * Which tasks a step takes: pure functions of the step, so a resumed run needs nothing but its step count.
 * Knows indices, not rows.
 */
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { deriveSeed, permutation } from "../random.ts";

export interface SamplerOptions {
  /** Tasks in the dataset. */
  size: number;
  /** Tasks per step, at most `size`. What is left over at the end of an epoch is dropped. */
  batchSize: number;
  seed: number;
  /** A new order each epoch; otherwise the dataset's own. */
  shuffle: boolean;
}

/** The order of the epoch last asked for: computing it costs the whole dataset, and a run asks step after step. */
let last: { key: string; order: readonly number[] } | undefined;

function epochOrder(size: number, seed: number, epoch: number): readonly number[] {
  const key = `${size} ${seed} ${epoch}`;
  if (last?.key !== key) last = { key, order: permutation(size, deriveSeed(seed, "shuffle", epoch)) };
  return last.order;
}

/**
 * The tasks of a step, every one at most once an epoch.
 * @param step counts from 0
 * @returns `epoch` counts from 0; `indices` are `batchSize` different numbers below `size`
 * @throws UserError when a batch is larger than the dataset
 */
export function taskIndices(options: SamplerOptions, step: number): { epoch: number; indices: number[] } {
  const { size, batchSize, seed, shuffle } = options;
  const perEpoch = stepsPerEpoch(size, batchSize);
  const epoch = Math.floor(step / perEpoch);
  const first = (step % perEpoch) * batchSize;
  if (!shuffle) return { epoch, indices: Array.from({ length: batchSize }, (_, index) => first + index) };
  return { epoch, indices: epochOrder(size, seed, epoch).slice(first, first + batchSize) };
}

/**
 * Whole batches in the dataset; a remainder does not count.
 * @param key what sets the batch's size
 * @throws UserError when there is not even one
 */
export function stepsPerEpoch(size: number, batchSize: number, key = "data.train_batch_size"): number {
  if (batchSize > size) {
    throw new UserError(`${key} is ${batchSize}, but the dataset has only ${size} tasks`, {
      hint: `Set ${key}=${size} or less, or add tasks.`,
    });
  }
  return Math.floor(size / batchSize);
}

/** Training steps of a run: `total_batches` where it is set (> 0), else whole epochs of so many steps each. */
export function totalSteps(config: Config, perEpoch: number): number {
  const { total_batches, total_epochs } = config.rllm.trainer;
  return total_batches !== null && total_batches > 0 ? total_batches : total_epochs * perEpoch;
}
