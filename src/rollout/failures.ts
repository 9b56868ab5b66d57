/** What can end an attempt at a task other than its outcome, and how it is reported. */
import { HoneError, UserError } from "../errors.ts";
import { own } from "../own.ts";
import type { Failure, FailureBoundary, TerminationReason } from "../trajectories/types.ts";
import { failureKind } from "./failure-kind.ts";

/** Thrown by a model call that the limits forbid: the rollout ends with this reason, which is not a failure. */
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

/** The workflow, or the environment in it, returned something that it may not return: what it did, as a verb. */
export class BadOutcome extends UserError {
  override name = "BadOutcome";
}

const boundaries: Record<string, FailureBoundary> = {
  "set-up": "set_up",
  environment: "environment",
  reward: "reward",
};

/**
 * The failure that an error thrown at this stage of a workflow amounts to.
 * @param fault what is wrong with the model's last reply, where something is
 */
export function toFailure(error: unknown, stage: string, fault?: string): Failure {
  const boundary = error instanceof ModelCallError ? "engine" : (own(boundaries, stage) ?? "workflow");
  const kind = failureKind(error, boundary, fault);
  const failure: Failure = { kind, boundary, message: describe(error, stage) };
  if (kind === "model" && fault !== undefined) failure.message += `; the model's last reply ${fault}`;
  if (error instanceof Error && error.stack !== undefined && !(error instanceof BadOutcome)) {
    failure.stack = error.stack;
  }
  return failure;
}

function describe(error: unknown, stage: string): string {
  if (error instanceof ModelCallError) return error.message;
  if (error instanceof BadOutcome) return `${stage} ${error.message}`;
  // Its message is written for the user and needs no class name.
  if (error instanceof HoneError) return `${stage}: ${error.message}`;
  return `${stage} threw ${describeThrown(error)}`;
}

function describeThrown(error: unknown): string {
  if (!(error instanceof Error)) return `a value that is not an Error: ${String(error)}`;
  // Some libraries name the class only.
  return `${error.name === "Error" ? error.constructor.name : error.name}: ${error.message}`;
}
