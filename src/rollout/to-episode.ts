/** Turns the model calls of a rollout into trajectories, and its last attempt into an episode. */
import type { Outcome } from "../agents/types.ts";
import type { Task } from "../data/task.ts";
import { own } from "../own.ts";
import {
  type Episode,
  type Failure,
  isSideRole,
  type Step,
  type TerminationReason,
  type Trajectory,
} from "../trajectories/types.ts";
import { defaultRole, type TrajectoryGrouping } from "./session/types.ts";

/** The name of a trajectory in outcomes: its role, with `#instance` if the role has several. */
export const labelOf = ({ name, instance }: { name: string; instance?: number | undefined }) =>
  instance === undefined ? name : `${name}#${instance}`;

export interface RecordedCall {
  turn: number;
  role: string;
  instance: number | undefined;
  metadata: Readonly<Record<string, unknown>>;
  /** What is wrong with the reply, if anything. */
  fault: string | undefined;
  step: Step;
}

/** @returns trajectories in the order of their first calls, side calls last, with rewards of null: the first has the episode's reward */
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
  return [...trajectories.values()].sort((a, b) => Number(isSideRole(a.name)) - Number(isSideRole(b.name)));
}

/** 1 and "1" are the same key. */
const keyOf = (value: unknown) => (value === undefined || value === null ? undefined : String(value));

/** How an attempt ended. */
export interface EndedAttempt {
  /** The limit that ended it, in words. */
  ended?: string;
  trajectories: Trajectory[];
  termination: TerminationReason;
  /** Undefined when the attempt ended before there was one. */
  outcome?: Outcome;
  failure?: Failure;
  /** What was thrown, when the attempt failed. */
  error?: unknown;
  /** The agent threw after the model had answered, so the error may be due to the reply. */
  agentError?: boolean;
}

/** The last attempt of a rollout as an episode. */
export function toEpisode(
  task: Task,
  rollout: number,
  retriedAfter: NonNullable<Episode["retriedAfter"]>,
  { outcome, failure, termination, ended, trajectories: recorded }: EndedAttempt,
  seconds: number,
): Episode {
  // An outcome without a model call still counts in the mean reward.
  const trajectories = recorded.length > 0 || !outcome ? recorded : [{ name: defaultRole, steps: [], reward: null }];
  for (const trajectory of trajectories) {
    const label = labelOf(trajectory);
    const ofRole = [label, trajectory.name].map((name) => own(outcome?.rewards, name));
    const reward = ofRole.find((each) => each !== undefined);
    trajectory.reward = reward === undefined ? (outcome?.reward ?? null) : reward;
    const rewards = own(outcome?.stepRewards, label);
    const advantages = own(outcome?.advantages, label);
    for (const [index, step] of trajectory.steps.entries()) {
      step.reward = rewards?.[index] ?? null;
      const advantage = advantages?.[index];
      if (advantage !== undefined) step.advantage = advantage;
    }
  }
  const episode: Episode = {
    id: `${task.id}:${rollout}`,
    taskId: task.id,
    rollout,
    row: keptRow(task.row),
    trajectories,
    termination,
    correct: outcome?.correct ?? null,
    metrics: { ...outcome?.metrics },
    retries: retriedAfter.length,
    seconds,
  };
  const explanation = outcome?.explanation ?? ended;
  if (explanation !== undefined) episode.explanation = explanation;
  if (outcome?.trial !== undefined) episode.trial = outcome.trial;
  if (failure) episode.failure = failure;
  if (retriedAfter.length > 0) episode.retriedAfter = retriedAfter;
  return episode;
}

/** rLLM's shaping of step rewards. Rewards of trajectories do not change. */
export interface RewardShaping {
  /** `r[i] += bonus * (r[i] - r[i-1])`, of the rewards as they were; 0 is off. */
  rewardBonus: number;
  /** Then `r[i] += gamma * r[i+1]` from the last step backwards; 0 is off. */
  gamma: number;
}

/** Changes the steps, unless one of their rewards is unknown. */
export function shapeStepRewards(steps: readonly Step[], { rewardBonus, gamma }: RewardShaping): void {
  const raw = steps.flatMap(({ reward }) => reward ?? []);
  if (steps.length < 2 || raw.length < steps.length) return;
  const rewards = raw.map((reward, index) => reward + rewardBonus * (reward - (raw[index - 1] ?? reward)));
  let later = 0;
  for (const [index, step] of [...steps.entries()].reverse()) {
    later = (rewards[index] ?? 0) + gamma * later;
    step.reward = later;
  }
}

const maxCharacters = 1 << 16;

/** @returns the row as plain JSON without long bytes, or a sentence when it is not serializable or is over 64 KiB */
export function keptRow(row: unknown): unknown {
  try {
    const json = JSON.stringify(row, function (this: Record<string, unknown>, key, value: unknown) {
      // `value` of a Buffer is already a list of numbers.
      const own = this[key];
      if (own instanceof Uint8Array && own.length > 1024) return `[${own.length} bytes]`;
      return typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value))
        ? String(value)
        : value;
    }) as string | undefined;
    if (json === undefined) return `[not kept: ${typeof row}]`;
    if (json.length > maxCharacters) return `[not kept: ${json.length} characters] ${json.slice(0, 200)}`;
    return JSON.parse(json);
  } catch (error) {
    return `[not kept: ${error instanceof Error ? error.message.split("\n")[0] : error}]`;
  }
}
