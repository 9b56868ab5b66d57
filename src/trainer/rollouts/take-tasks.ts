/** The tasks of a draw: a pure function of its number, so that a resumed run takes the same ones. */
import { type SamplerOptions, taskIndices } from "../../data/sampler.ts";
import type { Task } from "../../data/task.ts";
import type { Dataset } from "../../data/types.ts";

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
