/** One attempt at one task: a fresh session, time limits, and whatever happened told as data. */
import { setMaxListeners } from "node:events";
import type { Outcome, Task, Workflow } from "../agents/types.ts";
import { deriveSeed, uniforms } from "../random.ts";
import type { Failure, TerminationReason, Trajectory } from "../trajectories/types.ts";
import { ambientCalls } from "./ambient-calls.ts";
import { checkOutcome } from "./check-outcome.ts";
import { causes, isMistake } from "./failure-kind.ts";
import { ModelCallError, RolloutEnded, toFailure } from "./failures.ts";
import { type GatewayDoor, openDoor, type RolloutGateway } from "./gateway-door.ts";
import { type PhaseLimits, startPhases } from "./phases.ts";
import type { RolloutSession } from "./rollout-session.ts";
import type { SamplingClient, SessionOptions } from "./sampling-client.ts";
import { createTearDown } from "./tear-down.ts";

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
  /** The agent threw after the model had answered, so that what it threw tells something of the policy. */
  agentError?: boolean;
  /** What went wrong in tearing down; no part of the outcome. */
  tearDownProblems: string[];
}

export interface AttemptLimits extends PhaseLimits {
  /** Of what each `tearDown` registered. Default 60. */
  tearDownSeconds?: number;
}

export interface AttemptOptions<Row> extends Omit<SessionOptions, "taskId" | "signal"> {
  task: Task<Row>;
  workflow: Workflow<Row>;
  client: SamplingClient;
  purpose: "train" | "validate";
  /** Of the attempt until its outcome; tearing down comes on top. */
  timeoutSeconds: number;
  limits?: AttemptLimits;
  /** Of the rollout's own random draws; default 0. */
  seed?: number;
  /** Without one, a workflow that asks for its address is told so. */
  gateway?: RolloutGateway;
  /** Called with each line that the workflow logs. Default: they are dropped. */
  log?: (text: string) => void;
  /** Aborted by the caller to stop the attempt. */
  abort: AbortController;
}

class TimeIsUp extends Error {
  override name = "TimeoutError";
}

/** @throws the reason of `abort` when the caller aborts it; everything else is in the answer */
export async function runAttempt<Row>(options: AttemptOptions<Row>): Promise<Attempt> {
  const tearDown = createTearDown(options.limits?.tearDownSeconds ?? 60);
  let attempt: Omit<Attempt, "tearDownProblems">;
  let tearDownProblems: string[] = [];
  const { task, rollout, attempt: retry, purpose, abort } = options;
  const identity = { taskId: task.id, rollout, attempt: retry, purpose };
  const door = openDoor(options.gateway, identity, abort.signal);
  try {
    attempt = await untilOutcome(options, door, tearDown.register);
    door.close(attempt);
  } finally {
    door.close(undefined);
    tearDownProblems = await tearDown.run();
  }
  return { ...attempt, tearDownProblems };
}

async function untilOutcome<Row>(
  options: AttemptOptions<Row>,
  door: GatewayDoor,
  tearDown: (clean: () => void | Promise<void>) => void,
): Promise<Omit<Attempt, "tearDownProblems">> {
  const { task, workflow, client, purpose, order, rollout, attempt, maxSteps, timeoutSeconds, limits, abort } = options;
  const signal = abort.signal;
  // A workflow may make any number of model calls side by side, each of which listens.
  setMaxListeners(0, signal);
  const session = client.open({
    ...{ taskId: task.id, order, rollout, attempt, signal },
    ...(maxSteps === undefined ? {} : { maxSteps }),
  });
  const phases = startPhases({ ...limits, totalSeconds: timeoutSeconds }, (message) =>
    abort.abort(new TimeIsUp(message)),
  );
  let stray: { error: unknown } | undefined;
  let ended = false;
  const fail = (error: unknown) => {
    if (ended) return false;
    stray ??= { error };
    abort.abort(error);
    return true;
  };
  const stopped = new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

  try {
    const stage = (name: string) => {
      session.setStage(name);
      phases.enter(name);
    };
    const random = uniforms(deriveSeed(options.seed ?? 0, "rollout", task.id, rollout, attempt));
    const gateway = door.access(session);
    const context = {
      ...{ model: session.model, gateway, signal, rollout, attempt, purpose, random, stage, tearDown },
      log: options.log ?? (() => {}),
      maxSteps: maxSteps ?? Number.POSITIVE_INFINITY,
    };
    const work = ambientCalls.run({ gateway, rollout: `rollout ${rollout} of ${task.id}`, fail }, async () =>
      workflow(task, context),
    );
    const returned = await Promise.race([work, stopped]);
    const trajectories = session.trajectories();
    const outcome = checkOutcome(returned, trajectories);
    const termination = outcome.termination ?? (session.truncated() ? "max_response_length_exceeded" : "env_done");
    return { trajectories, outcome, termination };
  } catch (error) {
    const trajectories = session.trajectories();
    if (signal.aborted && signal.reason instanceof TimeIsUp) {
      const { what } = session.waitingFor();
      const message = `${signal.reason.message}; it was waiting for ${what}`;
      const kind = what === "the model" ? "infrastructure" : what === "reward" ? "reward" : "agent";
      const failure: Failure = { kind, boundary: "timeout", message };
      return { trajectories, termination: "timeout", failure, error: signal.reason };
    }
    if (signal.aborted && stray === undefined) throw signal.reason;
    const cause = stray ? stray.error : behind(error, session);
    if (cause instanceof RolloutEnded) return { trajectories, termination: cause.reason, ended: cause.message };
    // An error that nothing awaited has nothing to do with what the model said.
    const failure = toFailure(cause, session.stage, stray ? undefined : session.fault());
    const agentError = trajectories.length > 0 && isAgentError(failure, cause);
    const atLimit = agentError && stray === undefined && session.truncated();
    const termination = atLimit ? "max_response_length_exceeded" : "error";
    return { trajectories, termination, failure, error: cause, agentError };
  } finally {
    ended = true;
    phases.end();
    session.close();
  }
}

const isAgentError = ({ kind }: Failure, error: unknown) => (kind === "model" || kind === "agent") && !isMistake(error);

/**
 * A model call that fails behind an HTTP client reaches the workflow as that client's own error. The call was why the
 * workflow failed if the error repeats its message, or if no later call was answered.
 */
function behind(error: unknown, { problems, lastProblem, stage }: RolloutSession): unknown {
  if (stage === "reward" || error instanceof ModelCallError || error instanceof RolloutEnded) return error;
  const told = causes(error).map((each) => (each instanceof Error ? each.message : String(each)));
  const repeated = problems.findLast(({ message }) => told.some((text) => text.includes(message)));
  return repeated ?? lastProblem ?? error;
}
