/** One attempt at one task: a fresh session, a time limit, and whatever happened told as data. */
import { setMaxListeners } from "node:events";
import type { Outcome, Task, Workflow } from "../agents/types.ts";
import type { TerminationReason, Trajectory } from "../trajectories/types.ts";
import { checkOutcome } from "./check-outcome.ts";
import { type Failure, RolloutEnded, toFailure } from "./failures.ts";
import type { SamplingClient, SessionOptions } from "./sampling-client.ts";

export interface Attempt {
  /** Which limit ended it, in words, where one did. */
  ended?: string;
  trajectories: Trajectory[];
  termination: TerminationReason;
  /** Undefined when the attempt ended before there was one. */
  outcome?: Outcome;
  failure?: Failure;
  /** What was thrown, when the attempt failed. */
  error?: unknown;
}

export interface AttemptOptions<Row> extends Omit<SessionOptions, "taskId" | "signal"> {
  task: Task<Row>;
  workflow: Workflow<Row>;
  client: SamplingClient;
  purpose: "train" | "validate";
  timeoutSeconds: number;
  /** Aborted by the caller to stop the attempt. */
  abort: AbortController;
}

/** Timers beyond this fire at once; such a limit is as good as none. */
const longestTimerMs = 2 ** 31 - 1;

class TimeIsUp extends Error {
  override name = "TimeoutError";
}

/** @throws the reason of `abort` when the caller aborts it; everything else is in the answer */
export async function runAttempt<Row>(options: AttemptOptions<Row>): Promise<Attempt> {
  const { task, workflow, client, purpose, order, rollout, attempt, timeoutSeconds, abort } = options;
  const signal = abort.signal;
  // A workflow may make any number of model calls side by side, each of which listens.
  setMaxListeners(0, signal);
  const session = client.open({ taskId: task.id, order, rollout, attempt, signal });
  const limit = timeoutSeconds * 1000;
  const timeIsUp = () => abort.abort(new TimeIsUp(`the attempt took longer than ${timeoutSeconds} s`));
  const timer = limit <= longestTimerMs ? setTimeout(timeIsUp, limit) : undefined;
  const stopped = new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

  try {
    const context = { model: session.model, signal, rollout, purpose, stage: session.setStage };
    const work = (async () => workflow(task, context))();
    const returned = await Promise.race([work, stopped]);
    const trajectories = session.trajectories();
    const outcome = checkOutcome(
      returned,
      trajectories.map((trajectory) => trajectory.name),
    );
    return { trajectories, outcome, termination: session.truncated() ? "max_response_length_exceeded" : "env_done" };
  } catch (error) {
    const trajectories = session.trajectories();
    if (signal.aborted && signal.reason instanceof TimeIsUp) {
      const message = `${signal.reason.message}; it was waiting for ${session.waitingFor().what}`;
      return { trajectories, termination: "timeout", failure: { boundary: "timeout", message }, error: signal.reason };
    }
    if (signal.aborted) throw signal.reason;
    if (error instanceof RolloutEnded) return { trajectories, termination: error.reason, ended: error.message };
    return { trajectories, termination: "error", failure: toFailure(error, session.stage), error };
  } finally {
    clearTimeout(timer);
    session.close();
  }
}
