/** What can end an attempt at a task other than its outcome, and how it is told. */
import { UserError } from "../errors.ts";
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

/** The workflow, or the environment in it, gave something that is none of what it may give: what it did, as a verb. */
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
  // It says for whom it is and what to do, and is no accident of the code that threw it.
  if (error instanceof UserError) return { boundary, message: `${stage}: ${error.message}`, ...stack };
  return { boundary, message: `${stage} threw ${text}`, ...stack };
}
