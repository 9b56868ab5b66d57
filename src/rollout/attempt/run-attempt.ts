/** Runs one attempt at one task: a new session, time limits, and a result as data, also after an error. */
import { setMaxListeners } from "node:events";
import { ModelCallError, RolloutEnded } from "../../agents/control-flow.ts";
import type { GatewayAccess, Workflow } from "../../agents/types.ts";
import type { Task } from "../../data/task.ts";
import { messageOf, UserError } from "../../errors.ts";
import { deriveSeed, uniforms } from "../../random.ts";
import type { Failure } from "../../trajectories/types.ts";
import type { SamplingClient } from "../session/sampling-client.ts";
import type { RolloutSession, SessionOptions } from "../session/types.ts";
import type { EndedAttempt } from "../to-episode.ts";
import { ambientCalls } from "./ambient-calls.ts";
import { checkOutcome } from "./check-outcome.ts";
import { causes, isMistake, toFailure } from "./failures.ts";
import { type AttemptLimits, createTearDown, startPhases } from "./time-limits.ts";

interface AttemptIdentity {
  taskId: string;
  rollout: number;
  /** 0, or how often this rollout has failed before. */
  attempt: number;
  purpose: "train" | "validate";
}

/** Gives rollouts HTTP addresses. */
export interface RolloutGateway {
  open(identity: AttemptIdentity, session: RolloutSession, signal: AbortSignal): OpenedGateway;
}

export interface OpenedGateway {
  access: Omit<GatewayAccess, "calls">;
  /** @param attempt undefined when the run was stopped */
  close(attempt: EndedAttempt | undefined): void;
}

export interface Attempt extends EndedAttempt {
  /** What went wrong in tearing down; not a part of the outcome. */
  tearDownProblems: string[];
}

export interface AttemptOptions<Row> extends Omit<SessionOptions, "taskId" | "signal"> {
  task: Task<Row>;
  workflow: Workflow<Row>;
  client: SamplingClient;
  purpose: "train" | "validate";
  /** Time limit until the outcome, without tearing down. */
  timeoutSeconds: number;
  limits?: AttemptLimits | undefined;
  /** For the workflow's context. */
  warmQueueSize?: number | undefined;
  /** Seed of the rollout's own random draws; default 0. */
  seed?: number | undefined;
  /** Without one, a workflow that asks for its address fails. */
  gateway?: RolloutGateway | undefined;
  /** Called with each line that the workflow logs. */
  log?: (text: string) => void;
  /** Aborted by the caller to stop the attempt. */
  abort: AbortController;
}

class TimeIsUp extends Error {
  override name = "TimeoutError";
}

/** @throws the reason of `abort` when the caller aborts it; everything else is in the result */
export async function runAttempt<Row>(options: AttemptOptions<Row>): Promise<Attempt> {
  const tearDown = createTearDown(options.limits);
  const { task, rollout, attempt, purpose, abort } = options;
  const lazyGateway = createLazyGateway(options.gateway, { taskId: task.id, rollout, attempt, purpose }, abort.signal);
  let ended: EndedAttempt;
  let tearDownProblems: string[] = [];
  try {
    ended = await untilOutcome(options, lazyGateway, tearDown.register);
    lazyGateway.close(ended);
  } finally {
    lazyGateway.close(undefined);
    tearDownProblems = await tearDown.run();
  }
  return { ...ended, tearDownProblems };
}

async function untilOutcome<Row>(
  options: AttemptOptions<Row>,
  lazyGateway: LazyGateway,
  tearDown: (clean: () => void | Promise<void>) => void,
): Promise<EndedAttempt> {
  const { task, workflow, client, purpose, order, rollout, attempt, maxSteps, timeoutSeconds, limits, abort } = options;
  const signal = abort.signal;
  // Each concurrent model call listens.
  setMaxListeners(0, signal);
  const session = client.open({ taskId: task.id, order, rollout, attempt, signal, maxSteps });
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
    const gateway = lazyGateway.access(session);
    const context = {
      model: session.model,
      gateway,
      signal,
      rollout,
      attempt,
      purpose,
      random,
      stage,
      tearDown,
      log: options.log ?? (() => {}),
      maxSteps: maxSteps ?? Number.POSITIVE_INFINITY,
      ...(options.warmQueueSize === undefined ? {} : { warmQueueSize: options.warmQueueSize }),
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
      const kind =
        what === "the model" || what === "set-up" ? "infrastructure" : what === "reward" ? "reward" : "agent";
      const failure: Failure = { kind, boundary: "timeout", message };
      return { trajectories, termination: "timeout", failure, error: signal.reason };
    }
    if (signal.aborted && stray === undefined) throw signal.reason;
    const cause = stray ? stray.error : behind(error, session);
    if (cause instanceof RolloutEnded) return { trajectories, termination: cause.reason, ended: cause.message };
    // An error that nothing awaited is not due to the model's reply.
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
 * The model call behind a workflow's error, if any. HTTP clients throw their own errors for a failed call. The call
 * is the cause if the error repeats its message, or if no later call was answered.
 */
function behind(error: unknown, { problems, lastProblem, stage }: RolloutSession): unknown {
  if (stage === "reward" || error instanceof ModelCallError || error instanceof RolloutEnded) return error;
  const messages = causes(error).map(messageOf);
  const repeated = problems.findLast(({ message }) => messages.some((text) => text.includes(message)));
  return repeated ?? lastProblem ?? error;
}

interface LazyGateway {
  access(session: RolloutSession): GatewayAccess;
  /** Only the first call counts. */
  close(attempt: EndedAttempt | undefined): void;
}

/** Opens an HTTP address when the workflow first asks for one, and closes it with the attempt. */
function createLazyGateway(
  gateway: RolloutGateway | undefined,
  identity: AttemptIdentity,
  signal: AbortSignal,
): LazyGateway {
  let opened: OpenedGateway | undefined;
  let closed = false;

  return {
    access(session) {
      const ask = (): OpenedGateway["access"] => {
        if (gateway === undefined) {
          throw new UserError("the workflow calls a gateway, but this run has none", {
            hint: "train() and runWorkflow() open one; runRollouts takes one as `gateway`",
          });
        }
        if (closed) throw new Error("the gateway was requested after the rollout had ended");
        opened ??= gateway.open(identity, session, signal);
        return opened.access;
      };
      return {
        get baseURL() {
          return ask().baseURL;
        },
        get anthropicBaseURL() {
          return ask().anthropicBaseURL;
        },
        get apiKey() {
          return ask().apiKey;
        },
        as: (role, instance) => ask().as(role, instance),
        separateSideCalls: () => ask().separateSideCalls(),
        end: () => ask().end(),
        result: () => ask().result(),
        calls: session.calls,
      };
    },
    close(attempt) {
      if (closed) return;
      closed = true;
      opened?.close(attempt);
    },
  };
}
