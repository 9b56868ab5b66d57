/** One line of tasks.jsonl: what a rollout was asked, what it answered and why it got its reward. */
import { sampledTokens } from "../../trajectories/metrics.ts";
import type { Episode } from "../../trajectories/types.ts";
import type { Attempt } from "./attempts.ts";
import { verdictOf } from "./validate.ts";

export interface Outcome extends Attempt {
  rollout: number;
  /** The task's row, which holds the expected answer where the dataset has one. */
  row: unknown;
  /** Of the last model call. */
  reply: string;
  /** The grader's explanation, or the failure. */
  reason: string | null;
  termination: Episode["termination"];
  calls: number;
  seconds: number;
}

export function outcomeOf(episode: Episode): Outcome {
  const { taskId: task, rollout, row, termination, seconds, failure, explanation } = episode;
  const steps = episode.trajectories.flatMap((trajectory) => trajectory.steps);
  const failed = failure && `${failure.boundary} failed: ${failure.message}`;
  return {
    task,
    rollout,
    row,
    reply: steps.at(-1)?.text ?? "",
    ...verdictOf(episode),
    reason: failed ?? explanation ?? null,
    termination,
    calls: steps.length,
    tokens: sampledTokens(episode),
    seconds,
  };
}
