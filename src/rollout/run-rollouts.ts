/** Runs many attempts at many tasks concurrently: order, concurrency, retries. */
import { ModelCallError } from "../agents/control-flow.ts";
import type { Workflow } from "../agents/types.ts";
import { yieldIfDue } from "../concurrency/yield-if-due.ts";
import type { Task } from "../data/task.ts";
import { HoneError, RunError, UserError } from "../errors.ts";
import { userFrames } from "../stack-frames.ts";
import type { Episode, Failure } from "../trajectories/types.ts";
import { isMistake, withoutStack } from "./attempt/failures.ts";
import { type RolloutGateway, runAttempt } from "./attempt/run-attempt.ts";
import type { AttemptLimits } from "./attempt/time-limits.ts";
import type { SamplingClient } from "./session/sampling-client.ts";
import { type RewardShaping, shapeStepRewards, toEpisode } from "./to-episode.ts";

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
