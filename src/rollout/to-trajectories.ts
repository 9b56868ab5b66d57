/** Which of a rollout's model calls belong together. */

import { own } from "../own.ts";
import type { Step, Trajectory } from "../trajectories/types.ts";
import { labelOf } from "./label.ts";

export interface RecordedCall {
  turn: number;
  role: string;
  instance: number | undefined;
  metadata: Readonly<Record<string, unknown>>;
  /** What is wrong with the reply, where something is. */
  fault: string | undefined;
  step: Step;
}

/**
 * Names of metadata that calls carry. Calls with the same value of `groupBy` are one trajectory, and a call without it
 * is one of its own; `nameBy` names a trajectory, and trajectories of the same name are compared with each other. Null:
 * the role decides.
 */
export interface TrajectoryGrouping {
  groupBy: string | null;
  nameBy: string | null;
}

/** @returns trajectories in the order of their first calls; rewards are not known here and stay null */
export function toTrajectories(calls: readonly RecordedCall[], { groupBy, nameBy }: TrajectoryGrouping): Trajectory[] {
  const trajectories = new Map<unknown, Trajectory>();
  for (const { role, instance, metadata, step } of calls) {
    const key = groupBy === null ? labelOf({ name: role, instance }) : (keyOf(own(metadata, groupBy)) ?? step);
    const name = nameBy === null ? role : (keyOf(own(metadata, nameBy)) ?? role);
    const numbered = groupBy === null && instance !== undefined ? { instance } : {};
    const trajectory = trajectories.get(key) ?? { name, ...numbered, steps: [], reward: null };
    trajectories.set(key, trajectory);
    trajectory.steps.push(step);
  }
  return [...trajectories.values()];
}

/** Metadata comes from anywhere: 1 and "1" name the same. */
const keyOf = (value: unknown) => (value === undefined || value === null ? undefined : String(value));
