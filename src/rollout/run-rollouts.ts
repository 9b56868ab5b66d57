/** Many attempts at many tasks, side by side: order, concurrency, retries. What one attempt is, is run-attempt.ts's. */
import type { Task, Workflow } from "../agents/types.ts";
import { yieldIfDue } from "../concurrency/yield-if-due.ts";
import { HoneError, RunError, UserError } from "../errors.ts";
import { own } from "../own.ts";
import { userFrames } from "../stack-frames.ts";
import type { Episode, Failure } from "../trajectories/types.ts";
import { isMistake } from "./failure-kind.ts";
import { ModelCallError } from "./failures.ts";
import type { RolloutGateway } from "./gateway-door.ts";
import { keptRow } from "./kept-row.ts";
import { labelOf } from "./label.ts";
import { defaultOnAgentError, type OnAgentError } from "./on-agent-error.ts";
import { defaultRole } from "./rollout-session.ts";
import { type Attempt, type AttemptLimits, runAttempt } from "./run-attempt.ts";
import type { SamplingClient } from "./sampling-client.ts";
import { type RewardShaping, shapeStepRewards } from "./shape-step-rewards.ts";

export interface RunRolloutsOptions<Row> {
  tasks: readonly Task<Row>[];
  /** Rollouts per task. */
  n: number;
  /** Number of each task's first rollout; default 0. */
  firstRollout?: number;
  /** Position of the first task among all those that run at the same time; default 0. */
  firstOrder?: number;
  workflow: Workflow<Row>;
  client: SamplingClient;
  purpose: "train" | "validate";
  /** Rollouts that run at the same time. */
  nParallelTasks: number;
  /**
   * Further attempts after a failed one. Not after a timeout, which would cost as long again, nor after a `UserError`, which
   * would be the same, nor after a reward's error or an agent's (see `onAgentError`), which would favor other replies.
   */
  retryLimit: number;
  /** What becomes of a rollout whose agent throws after the model has answered. Default: a reward of 0. */
  onAgentError?: OnAgentError;
  /** Of one attempt until its outcome. */
  timeoutSeconds: number;
  /** Of its parts. */
  limits?: AttemptLimits;
  /** Model calls that each role of a rollout may make; default: any number. */
  maxSteps?: number;
  /** What is done to the rewards of single steps; default: nothing. */
  shaping?: RewardShaping;
  /** The rollouts' own random draws derive from it; default 0. */
  seed?: number;
  /** Gives rollouts an HTTP address of the model. */
  gateway?: RolloutGateway;
  /** Throw when a rollout has failed for good. Timeouts are data, not errors. */
  raiseOnError: boolean;
  /** Told of each episode as it ends, in no fixed order. */
  onEpisode?: (episode: Episode) => void;
  /** Called for each failed attempt that is retried. */
  onRetry?: (retry: { taskId: string; rollout: number; attempt: number; failure: Failure }) => void;
  /** Called for each rollout that failed for good without ending the run. `reward`: null if it is unknown. */
  onFailure?: (failed: { taskId: string; rollout: number; failure: Failure; reward: number | null }) => void;
  /** Called with each line that a workflow logs. */
  onLog?: (line: { taskId: string; rollout: number; text: string }) => void;
  /** Told of what went wrong in tearing an attempt down. */
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
 * @throws RunError when a rollout fails for good and `raiseOnError` (or `onAgentError`) says so, naming the task and where
 * it came from; UserError for a mistake of the user's
 * @throws the engine's own UserError or RunError as it is, whatever `raiseOnError` says: no rollout can go on then
 */
export async function runRollouts<Row>(options: RunRolloutsOptions<Row>): Promise<Episode[]> {
  const rollouts = listRollouts(options);
  const episodes: Episode[] = new Array(rollouts.length);
  const live = new Set<AbortController>();
  const run = new AbortController();
  let next = 0;

  run.signal.addEventListener("abort", () => {
    for (const abort of live) abort.abort(run.signal.reason);
  });
  const onAbort = () => run.abort(options.signal?.reason);
  if (options.signal?.aborted) onAbort();
  options.signal?.addEventListener("abort", onAbort, { once: true });

  async function work(): Promise<void> {
    while (next < rollouts.length) {
      const index = next++;
      const episode = await runRollout(options, rollouts[index]!, live, run.signal);
      episodes[index] = episode;
      options.onEpisode?.(episode);
    }
  }
  const release = options.client.hold();
  try {
    const workers: Promise<void>[] = [];
    const parallel = Math.min(options.nParallelTasks, rollouts.length);
    while (workers.length < parallel) {
      // The first failure stops the others; they end at once, so that nothing runs on behind the caller's back.
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

/** A task that occurs twice gets rollouts 0..2n-1, so that ids and seeds stay distinct. */
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
  const { limits, maxSteps, seed, gateway, onAgentError = defaultOnAgentError } = options;
  const start = performance.now();
  const retriedAfter: Omit<Failure, "stack">[] = [];
  let tearDownProblems = 0;
  for (let attempt = 0; ; attempt++) {
    stop.throwIfAborted();
    const abort = new AbortController();
    live.add(abort);
    const result = await runAttempt({
      ...{ task, workflow, client, purpose, order, rollout, attempt, timeoutSeconds, abort },
      ...(limits === undefined ? {} : { limits }),
      ...(maxSteps === undefined ? {} : { maxSteps }),
      ...(seed === undefined ? {} : { seed }),
      ...(gateway === undefined ? {} : { gateway }),
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
        const { stack: _, ...told } = failure;
        retriedAfter.push(told);
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

function toEpisode(
  task: Task,
  rollout: number,
  retriedAfter: NonNullable<Episode["retriedAfter"]>,
  attempt: Attempt,
  seconds: number,
): Episode {
  const { outcome, failure, termination, ended } = attempt;
  const explanation = outcome?.explanation ?? ended;
  const recorded = attempt.trajectories;
  // An outcome without a model call still counts when rewards are averaged.
  const trajectories = recorded.length > 0 || !outcome ? recorded : [{ name: defaultRole, steps: [], reward: null }];
  for (const trajectory of trajectories) {
    const names = [labelOf(trajectory), trajectory.name];
    const ofRole = names.map((name) => own(outcome?.rewards, name)).find((reward) => reward !== undefined);
    trajectory.reward = ofRole === undefined ? (outcome?.reward ?? null) : ofRole;
    const steps = own(outcome?.stepRewards, labelOf(trajectory));
    for (const [index, step] of trajectory.steps.entries()) step.reward = steps?.[index] ?? null;
    own(outcome?.advantages, labelOf(trajectory))?.forEach((advantage, index) => {
      trajectory.steps[index]!.advantage = advantage;
    });
  }
  return {
    id: `${task.id}:${rollout}`,
    taskId: task.id,
    rollout,
    row: keptRow(task.row),
    trajectories,
    termination,
    correct: outcome?.correct ?? null,
    metrics: { ...outcome?.metrics },
    ...(explanation === undefined ? {} : { explanation }),
    ...(failure ? { failure } : {}),
    retries: retriedAfter.length,
    ...(retriedAfter.length === 0 ? {} : { retriedAfter }),
    seconds,
  };
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
