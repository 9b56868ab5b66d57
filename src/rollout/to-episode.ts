/** Turns the last attempt of a rollout into an episode. */
import type { Task } from "../data/task.ts";
import { own } from "../own.ts";
import type { Episode } from "../trajectories/types.ts";
import type { EndedAttempt } from "./attempt/gateway-door.ts";
import { labelOf } from "./session/label.ts";
import { defaultRole } from "./session/types.ts";

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
  if (failure) episode.failure = failure;
  if (retriedAfter.length > 0) episode.retriedAfter = retriedAfter;
  return episode;
}

const maxCharacters = 1 << 16;

/** @returns the row as plain JSON without long bytes, or a sentence when it is not serializable or is over 64 KiB */
export function keptRow(row: unknown): unknown {
  try {
    const json = JSON.stringify(row, (_key, value: unknown) => {
      if (value instanceof Uint8Array && value.length > 1024) return `[${value.length} bytes]`;
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
