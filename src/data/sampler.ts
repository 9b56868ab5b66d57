/** Selects the tasks of a step: pure functions of the step, so a resumed run needs only its step count. */
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { deriveSeed, permutation } from "../random.ts";
import type { Task } from "./task.ts";
import type { Dataset } from "./types.ts";

interface SamplerOptions {
  /** Tasks in the dataset. */
  size: number;
  /** Tasks per step, at most `size` unless `partial` is set. */
  batchSize: number;
  /** The last step of an epoch has the remainder. Otherwise the remainder is dropped. */
  partial?: boolean;
  seed: number;
  /** Whether to use a new order each epoch instead of the dataset's own. */
  shuffle: boolean;
}

/** The order of the last epoch, cached because computing it takes time proportional to the dataset. */
let last: { key: string; order: readonly number[] } | undefined;

function epochOrder(size: number, seed: number, epoch: number): readonly number[] {
  const key = `${size} ${seed} ${epoch}`;
  if (last?.key !== key) last = { key, order: permutation(size, deriveSeed(seed, "shuffle", epoch)) };
  return last.order;
}

/**
 * The tasks of a step. Each task is used at most once per epoch.
 * @param step counts from 0
 * @returns `epoch` counts from 0; `indices` are different numbers below `size`
 * @throws UserError when a batch is larger than the dataset
 */
export function taskIndices(options: SamplerOptions, step: number): { epoch: number; indices: number[] } {
  const { size, batchSize, seed, shuffle, partial = false } = options;
  const perEpoch = partial ? Math.ceil(size / batchSize) : stepsPerEpoch(size, batchSize);
  const epoch = Math.floor(step / perEpoch);
  const first = (step % perEpoch) * batchSize;
  const count = Math.min(batchSize, size - first);
  if (!shuffle) return { epoch, indices: Array.from({ length: count }, (_, index) => first + index) };
  return { epoch, indices: epochOrder(size, seed, epoch).slice(first, first + batchSize) };
}

export type TaskOptions = Omit<SamplerOptions, "size">;

export interface TaskDraw {
  /** Counts from 1. */
  draw: number;
  /** Counts from 0. */
  epoch: number;
  tasks: Task[];
}

/** @param draw counts from 1 */
export function takeTasks(dataset: Dataset<unknown>, options: TaskOptions, draw: number): TaskDraw {
  const { epoch, indices } = taskIndices({ ...options, size: dataset.size }, draw - 1);
  return { draw, epoch, tasks: indices.map((index) => dataset.task(index)) };
}

/** Tasks that a training step trains on. */
export function tasksPerStep({ rllm: { async_training }, data }: Config): number {
  return async_training.enable ? async_training.mini_batch_size : data.train_batch_size;
}

/** Tasks of one draw. */
export function tasksPerDraw(config: Config): number {
  const { enable, multiplier } = config.rllm.rejection_sample;
  return Math.floor(tasksPerStep(config) * (enable ? multiplier : 1));
}

/**
 * The number of full batches in the dataset; a remainder does not count.
 * @param key the configuration key of the batch size
 * @throws UserError when the dataset is smaller than one batch
 */
export function stepsPerEpoch(size: number, batchSize: number, key = "data.train_batch_size"): number {
  if (batchSize > size) {
    throw new UserError(`${key} is ${batchSize}, but the dataset has only ${size} tasks`, {
      hint: `Set ${key}=${size} or less, or add tasks.`,
    });
  }
  return Math.floor(size / batchSize);
}

/** Training steps of a run: `total_batches` if set (> 0), otherwise `total_epochs` epochs of `perEpoch` steps. */
export function totalSteps(config: Config, perEpoch: number): number {
  const { total_batches, total_epochs } = config.rllm.trainer;
  return total_batches !== null && total_batches > 0 ? total_batches : total_epochs * perEpoch;
}
