/** Errors that end a model call or a rollout. */
import { UserError } from "../errors.ts";
import type { TerminationReason } from "../trajectories/types.ts";

/** A limit forbids the model call. The rollout ends with this reason, which is not a failure. */
export class RolloutEnded extends Error {
  override name = "RolloutEnded";
  readonly reason: TerminationReason;

  constructor(reason: TerminationReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** The engine did not answer a model call; the cause is the engine's own error. */
export class ModelCallError extends Error {
  override name = "ModelCallError";
}

/** The model was called after the rollout had ended. */
export class SessionEnded extends Error {
  override name = "SessionEnded";

  constructor() {
    super("the model was called after the rollout had ended");
  }
}

/** A workflow or an environment returned an invalid value. The message begins with a verb: "returned ...". */
export class BadOutcome extends UserError {
  override name = "BadOutcome";
}
