/** What can end an attempt at a task other than its outcome, and how it is told. */
import type { Episode, FailureBoundary, TerminationReason } from "../trajectories/types.ts";

export type Failure = NonNullable<Episode["failure"]>;

/** Thrown by a model call that the limits forbid: the rollout ends with this reason, which is no failure. */
export class RolloutEnded extends Error {
  override name = "RolloutEnded";
  readonly reason: TerminationReason;

  constructor(reason: TerminationReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** A model call that the engine did not answer; the cause is the engine's own error. */
export class ModelCallError extends Error {
  override name = "ModelCallError";
}

/** A model call that came after the rollout had ended. */
export class SessionEnded extends Error {
  override name = "SessionEnded";

  constructor() {
    super("the model was called after the rollout had ended");
  }
}

/** The workflow returned something that is no outcome. */
export class BadOutcome extends Error {
  override name = "BadOutcome";
}

const boundaries: Record<string, FailureBoundary> = {
  "set-up": "set_up",
  environment: "environment",
  reward: "reward",
};

/** The failure that an error thrown at this stage of a workflow amounts to. */
export function toFailure(error: unknown, stage: string): Failure {
  const stack = error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {};
  const text =
    error instanceof Error ? `${error.name}: ${error.message}` : `a value that is no Error: ${String(error)}`;
  if (error instanceof ModelCallError) return { boundary: "model", message: error.message, ...stack };
  const boundary = boundaries[stage] ?? "workflow";
  if (error instanceof BadOutcome) return { boundary, message: `${stage} ${error.message}` };
  return { boundary, message: `${stage} threw ${text}`, ...stack };
}

/** The frames of a stack that lie in the user's files, at most eight; empty when there are none. */
export function ownFrames(stack: string | undefined): string {
  const frames = (stack ?? "").split("\n").filter((line) => /^\s+at /.test(line));
  const own = frames.filter((line) => !/node:|node_modules/.test(line));
  return (own.length > 0 ? own : frames).slice(0, 8).join("\n");
}
