/** Runs rollouts: attempts with time limits and retries, in parallel, in an order that resumes reproduce. */
import { AsyncLocalStorage } from "node:async_hooks";
import { setMaxListeners } from "node:events";
import { type GatewayAccess, ModelCallError, RolloutEnded, type Workflow } from "../agents/types.ts";
import { yieldIfDue } from "../base/concurrency.ts";
import { HoneError, messageOf, RunError, UserError, userFrames } from "../base/errors.ts";
import { deriveSeed, uniforms } from "../base/values.ts";
import type { Task } from "../data/dataset.ts";
import type { Episode, Failure } from "../trajectories/types.ts";
import {
  causes,
  checkOutcome,
  type EndedAttempt,
  isMistake,
  type RewardShaping,
  shapeStepRewards,
  toEpisode,
  toFailure,
  withoutStack,
} from "./outcome.ts";
import type { SamplingClient } from "./session.ts";
import type { RolloutSession, SessionOptions } from "./types.ts";

// The time limits of an attempt: of each phase, of all of them together, and of each function that tears it down.

/** In seconds. Default: no limit. */
export interface AttemptLimits {
  /** From the stage "set-up" to the next one. */
  setUpSeconds?: number;
  /** All stages that are neither "set-up" nor "reward", model calls included. */
  runSeconds?: number;
  /** The stage "reward". */
  scoreSeconds?: number;
  /** Each function that `tearDown` registered. Default 60. */
  tearDownSeconds?: number;
}

type Phase = "set-up" | "run" | "score";

const phaseOf = (stage: string): Phase => (stage === "set-up" ? "set-up" : stage === "reward" ? "score" : "run");

/** Longer timers fire at once, so longer limits are ignored. */
const longestTimerMs = 2 ** 31 - 1;

interface Phases {
  enter(stage: string): void;
  end(): void;
}

/** @param onTimeUp called once, with the limit that was reached */
export function startPhases(
  { setUpSeconds, runSeconds, scoreSeconds, totalSeconds }: AttemptLimits & { totalSeconds: number },
  onTimeUp: (message: string) => void,
): Phases {
  const left: Record<Phase, number> = {
    "set-up": (setUpSeconds ?? Number.POSITIVE_INFINITY) * 1000,
    run: (runSeconds ?? Number.POSITIVE_INFINITY) * 1000,
    score: (scoreSeconds ?? Number.POSITIVE_INFINITY) * 1000,
  };
  const limit = { "set-up": setUpSeconds, run: runSeconds, score: scoreSeconds };
  const words = { "set-up": "its set-up", run: "its run", score: "its reward" };
  const total = startTimer(totalSeconds * 1000, () => onTimeUp(`the attempt took longer than ${totalSeconds} s`));
  let phase: Phase = "run";
  let since = performance.now();
  let timer: NodeJS.Timeout | undefined;

  const enter = (next: Phase) => {
    const now = performance.now();
    left[phase] -= now - since;
    since = now;
    phase = next;
    clearTimeout(timer);
    timer = startTimer(left[next], () => onTimeUp(`${words[next]} took longer than ${limit[next]} s`));
  };
  enter("run");
  return {
    enter: (stage) => {
      if (phaseOf(stage) !== phase) enter(phaseOf(stage));
    },
    end() {
      clearTimeout(timer);
      clearTimeout(total);
    },
  };
}

const startTimer = (milliseconds: number, onTimeUp: () => void) =>
  milliseconds <= longestTimerMs ? setTimeout(onTimeUp, Math.max(0, milliseconds)) : undefined;

interface TearDown {
  /** After the end, `clean` runs at once. */
  register(clean: () => void | Promise<void>): void;
  /** @returns what went wrong; never throws */
  run(): Promise<string[]>;
}

/** Runs what an attempt registered for its end: in reverse order, each within the limit. */
function createTearDown({ tearDownSeconds: seconds = 60 }: AttemptLimits = {}): TearDown {
  const registered: (() => void | Promise<void>)[] = [];
  let ended = false;
  return {
    register(clean) {
      if (ended) void attempt(clean, seconds);
      else registered.push(clean);
    },
    async run() {
      ended = true;
      const problems: string[] = [];
      for (const clean of registered.splice(0).reverse()) {
        const problem = await attempt(clean, seconds);
        if (problem !== undefined) problems.push(problem);
      }
      return problems;
    },
  };
}

async function attempt(clean: () => void | Promise<void>, seconds: number): Promise<string | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const timeIsUp = new Promise<string>((resolve) => {
    timer = setTimeout(
      () => resolve(`took longer than ${seconds} s; the run did not wait for its end`),
      seconds * 1000,
    );
  });
  try {
    return await Promise.race([(async () => void (await clean()))(), timeIsUp]);
  } catch (error) {
    return `threw ${error instanceof Error ? `${error.name}: ${error.message}` : String(error)}`;
  } finally {
    clearTimeout(timer);
  }
}

// Finds the rollout that the running code belongs to, also deep inside libraries.

export interface AmbientCalls {
  gateway: GatewayAccess;
  /** For messages: which rollout this is. */
  rollout: string;
  /** Fails the attempt with an error that nothing awaited. Returns false if the attempt has already ended. */
  fail(error: unknown): boolean;
  /** Under which role calls are recorded; default: the rollout's own. */
  role?: string;
  instance?: number;
  /** Recorded with each call. */
  metadata?: Readonly<Record<string, unknown>>;
}

export const ambientCalls = new AsyncLocalStorage<AmbientCalls>();

// Runs one attempt at one task: a new session, time limits, and a result as data, also after an error.

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

interface Attempt extends EndedAttempt {
  /** What went wrong in tearing down; not a part of the outcome. */
  tearDownProblems: string[];
}

interface AttemptOptions<Row> extends Omit<SessionOptions, "taskId" | "signal"> {
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
async function runAttempt<Row>(options: AttemptOptions<Row>): Promise<Attempt> {
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
    const refused = outcome.reward === null ? undefined : swallowedRefusal(session);
    if (refused !== undefined) throw refused;
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

/**
 * The refusal of a model call after which none was answered. Some agents report it as text and return, and their reward would be
 * trained on. A path that does not exist is not a model call: agents send telemetry there.
 */
function swallowedRefusal(session: RolloutSession): UserError | undefined {
  const { failure } = session.calls();
  const { kind } = (failure?.cause ?? {}) as { kind?: unknown };
  return failure instanceof UserError && kind !== "not_found" ? failure : undefined;
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
        get resultURL() {
          return ask().resultURL;
        },
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

// Runs many attempts at many tasks concurrently: order, concurrency, retries.

/**
 * How a rollout ends whose agent throws after the model has answered (`rllm.workflow.on_agent_error`):
 * - a reward: the rollout keeps its tokens and gets this reward. The only choice that does not favor replies that the
 *   agent can use.
 * - `retry`: another attempt, which samples new replies
 * - `drop`: the reward is unknown, and the rollout is not trained on
 * - `fail`: the run stops
 */
export type OnAgentError = "retry" | "drop" | "fail" | { reward: number };

const defaultOnAgentError: OnAgentError = { reward: 0 };

/** Reads the configuration's spelling. */
export function parseOnAgentError(text: `reward:${number}` | "retry" | "drop" | "fail"): OnAgentError {
  if (text === "retry" || text === "drop" || text === "fail") return text;
  return { reward: Number(text.slice("reward:".length)) };
}

export interface RunRolloutsOptions<Row> {
  tasks: readonly Task<Row>[];
  /** Rollouts per task. */
  n: number;
  /** Number of each task's first rollout; default 0. */
  firstRollout?: number;
  /** Position of the first task among all that run at the same time; default 0. */
  firstOrder?: number;
  workflow: Workflow<Row>;
  client: SamplingClient;
  purpose: "train" | "validate";
  /** Rollouts that run at the same time. */
  nParallelTasks: number;
  /**
   * Maximum number of retries of a rollout. A timeout is not retried, because it would take as long again. A `UserError`
   * would happen again, and retrying errors of rewards or agents (see `onAgentError`) would favor other replies.
   */
  retryLimit: number;
  /** How a rollout ends whose agent throws after the model has answered. Default: with a reward of 0. */
  onAgentError?: OnAgentError;
  /** Seconds of one attempt until its outcome. */
  timeoutSeconds: number;
  /** Time limits of its phases. */
  limits?: AttemptLimits;
  /** Model calls that each role of a rollout may make; default: any number. */
  maxSteps?: number;
  /** For the workflow's context. */
  warmQueueSize?: number;
  /** Changes the rewards of single steps. */
  shaping?: RewardShaping;
  /** For the rollouts' own random draws; default 0. */
  seed?: number;
  /** Gives rollouts an HTTP address of the model. */
  gateway?: RolloutGateway;
  /** Whether to throw when a rollout has failed after its retries. Timeouts are data, not errors. */
  raiseOnError: boolean;
  /** Called for each episode as it ends, in no fixed order. */
  onEpisode?: (episode: Episode) => void;
  /** Called for each failed attempt that is retried. */
  onRetry?: (retry: { taskId: string; rollout: number; attempt: number; failure: Failure }) => void;
  /** Called for each rollout that failed after its retries without ending the run. `reward`: null if unknown. */
  onFailure?: (failed: { taskId: string; rollout: number; failure: Failure; reward: number | null }) => void;
  /** Called with each line that a workflow logs. */
  onLog?: (line: { taskId: string; rollout: number; text: string }) => void;
  /** Called for each problem in tearing an attempt down. */
  onTearDownProblem?: (problem: { taskId: string; rollout: number; attempt: number; message: string }) => void;
  /** Stops everything: the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

interface Rollout<Row> {
  task: Task<Row>;
  /** Position of the task. */
  order: number;
  rollout: number;
}

/**
 * Runs `n` rollouts of every task. A failed rollout is an episode with `failure`.
 *
 * @returns episodes ordered by task, then rollout
 * @throws RunError when a rollout fails after its retries and `raiseOnError` or `onAgentError` demands it, naming the task
 * and its origin; UserError when the failure is a mistake of the user
 * @throws the engine's own errors, regardless of `raiseOnError`: no rollout can continue then
 */
export async function runRollouts<Row>(options: RunRolloutsOptions<Row>): Promise<Episode[]> {
  const rollouts = listRollouts(options);
  const episodes: Episode[] = new Array(rollouts.length);
  const live = new Set<AbortController>();
  const run = new AbortController();
  // Shared by the workers: each takes the next one.
  const pending = rollouts.entries();

  run.signal.addEventListener("abort", () => {
    for (const abort of live) abort.abort(run.signal.reason);
  });
  const onAbort = () => run.abort(options.signal?.reason);
  if (options.signal?.aborted) onAbort();
  options.signal?.addEventListener("abort", onAbort, { once: true });

  async function work(): Promise<void> {
    for (const [index, rollout] of pending) {
      const episode = await runRollout(options, rollout, live, run.signal);
      episodes[index] = episode;
      options.onEpisode?.(episode);
    }
  }
  const release = options.client.hold();
  try {
    const workers: Promise<void>[] = [];
    const parallel = Math.min(options.nParallelTasks, rollouts.length);
    while (workers.length < parallel) {
      // The first failure stops the others, so nothing runs after this function has returned.
      workers.push(work().catch((error: unknown) => run.abort(error)));
      const pause = workers.length % 16 === 0 ? yieldIfDue() : undefined;
      if (pause) await pause;
    }
    release();
    await Promise.all(workers);
    run.signal.throwIfAborted();
  } finally {
    options.signal?.removeEventListener("abort", onAbort);
  }
  return episodes;
}

/** A task that occurs twice gets rollouts 0..2n-1, so ids and seeds stay distinct. */
function listRollouts<Row>(options: RunRolloutsOptions<Row>): Rollout<Row>[] {
  const { tasks, n, firstRollout = 0, firstOrder = 0 } = options;
  const seen = new Map<string, number>();
  return tasks.flatMap((task, position) => {
    const first = seen.get(task.id) ?? firstRollout;
    seen.set(task.id, first + n);
    return Array.from({ length: n }, (_, index) => ({ task, order: firstOrder + position, rollout: first + index }));
  });
}

async function runRollout<Row>(
  options: RunRolloutsOptions<Row>,
  { task, order, rollout }: Rollout<Row>,
  live: Set<AbortController>,
  stop: AbortSignal,
): Promise<Episode> {
  const { workflow, client, purpose, timeoutSeconds, retryLimit, raiseOnError, onRetry } = options;
  const { limits, maxSteps, warmQueueSize, seed, gateway, onAgentError = defaultOnAgentError } = options;
  const start = performance.now();
  const retriedAfter: Omit<Failure, "stack">[] = [];
  let tearDownProblems = 0;
  for (let attempt = 0; ; attempt++) {
    stop.throwIfAborted();
    const abort = new AbortController();
    live.add(abort);
    const result = await runAttempt({
      task,
      workflow,
      client,
      purpose,
      order,
      rollout,
      attempt,
      timeoutSeconds,
      abort,
      limits,
      maxSteps,
      warmQueueSize,
      seed,
      gateway,
      log: (text) => options.onLog?.({ taskId: task.id, rollout, text }),
    }).finally(() => live.delete(abort));
    const { failure, error } = result;
    for (const message of result.tearDownProblems) {
      tearDownProblems++;
      options.onTearDownProblem?.({ taskId: task.id, rollout, attempt, message });
    }
    if (error instanceof ModelCallError && error.cause instanceof HoneError) throw error.cause;
    if (failure && result.termination === "error") {
      const rule = result.agentError ? onAgentError : "retry";
      if (rule === "retry" && attempt < retryLimit && failure.kind !== "reward" && !isMistake(error)) {
        retriedAfter.push(withoutStack(failure));
        onRetry?.({ taskId: task.id, rollout, attempt, failure });
        continue;
      }
      if (rule === "fail" || (rule === "retry" && raiseOnError)) {
        throw rolloutError(task, rollout, attempt, failure, error);
      }
    }
    if (result.agentError && typeof onAgentError === "object") {
      result.outcome = { reward: onAgentError.reward, correct: false };
    }
    if (failure) options.onFailure?.({ taskId: task.id, rollout, failure, reward: result.outcome?.reward ?? null });
    const episode = toEpisode(task, rollout, retriedAfter, result, (performance.now() - start) / 1000);
    if (tearDownProblems > 0) episode.metrics.tear_down_problems = tearDownProblems;
    if (options.shaping)
      for (const trajectory of episode.trajectories) shapeStepRewards(trajectory.steps, options.shaping);
    return episode;
  }
}

function rolloutError(task: Task, rollout: number, retries: number, failure: Failure, error: unknown): HoneError {
  const tries = retries === 0 ? "" : ` after ${retries} ${retries === 1 ? "retry" : "retries"}`;
  const frames = failure.stack === undefined || isMistake(error) ? "" : `\n${userFrames(failure.stack)}`;
  const Failed = isMistake(error) ? UserError : RunError;
  return new Failed(
    `rollout ${rollout} of task ${task.id} (${task.origin}) failed${tries}: ${failure.message}${frames}`,
    {
      cause: error,
      hint: `${whatToFix(failure, error)}, or skip such rollouts with rllm.workflow.raise_on_error=false`,
    },
  );
}

function whatToFix({ kind, boundary }: Failure, error: unknown): string {
  if (error instanceof HoneError && error.hint !== undefined) return error.hint;
  if (kind === "reward")
    return "fix the reward: return 0 for a reply that it cannot read, or { reward: null } if unknown";
  if (boundary === "engine") return "check the engine (its log is worker.log in the run folder)";
  return `fix the ${boundary.replace("_", "-")} for this task`;
}
