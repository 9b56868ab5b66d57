/** Groups a rollout's model calls into trajectories. */
import { own } from "../../own.ts";
import type { Step, Trajectory } from "../../trajectories/types.ts";
import { labelOf } from "./label.ts";

export interface RecordedCall {
  turn: number;
  role: string;
  instance: number | undefined;
  metadata: Readonly<Record<string, unknown>>;
  /** What is wrong with the reply, if anything. */
  fault: string | undefined;
  step: Step;
}

/**
 * Keys of the calls' metadata. Calls with the same value of `groupBy` are one trajectory; a call without it is a trajectory
 * of its own. `nameBy` names trajectories, and those of the same name are compared with each other. Null: by role.
 */
export interface TrajectoryGrouping {
  groupBy: string | null;
  nameBy: string | null;
}

/** @returns trajectories in the order of their first calls, with rewards of null */
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

/** 1 and "1" are the same key. */
const keyOf = (value: unknown) => (value === undefined || value === null ? undefined : String(value));
