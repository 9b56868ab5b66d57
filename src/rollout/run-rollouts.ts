/** Many attempts at many tasks, side by side: order, concurrency, retries. What one attempt is, is run-attempt.ts's. */
import type { Task, Workflow } from "../agents/types.ts";
import { RunError, UserError } from "../errors.ts";
import type { Episode } from "../trajectories/types.ts";
import { type Failure, ModelCallError, ownFrames } from "./failures.ts";
import { defaultRole } from "./rollout-session.ts";
import { type Attempt, runAttempt } from "./run-attempt.ts";
import type { SamplingClient } from "./sampling-client.ts";

export interface RunRolloutsOptions<Row> {
  tasks: readonly Task<Row>[];
  /** Rollouts per task. */
  n: number;
  workflow: Workflow<Row>;
  client: SamplingClient;
  purpose: "train" | "validate";
  /** Rollouts that run at the same time. */
  nParallelTasks: number;
  /** Further attempts after a failed one. A timeout is not retried: it would cost as long again. */
  retryLimit: number;
  /** Of one attempt. */
  timeoutSeconds: number;
  /** Throw when a rollout has failed for good. Timeouts are data, not errors. */
  raiseOnError: boolean;
  /** Told of each episode as it ends, in no fixed order. */
  onEpisode?: (episode: Episode) => void;
  /** Told of each failed attempt that is made again. */
  onRetry?: (retry: { taskId: string; rollout: number; attempt: number; failure: Failure }) => void;
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
 * Runs `n` rollouts of every task. A failed rollout is an episode with `failure` and unknown rewards.
 *
 * @returns episodes ordered by task, then rollout
 * @throws RunError when a rollout fails for good and `raiseOnError`, naming the task and where it came from
 * @throws the engine's own UserError or RunError as it is, whatever `raiseOnError` says: no rollout can go on then
 */
export async function runRollouts<Row>(options: RunRolloutsOptions<Row>): Promise<Episode[]> {
  const rollouts = listRollouts(options.tasks, options.n);
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
  try {
    const workers = Array.from({ length: Math.min(options.nParallelTasks, rollouts.length) }, work);
    // The first failure stops the others; they end at once, so that nothing runs on behind the caller's back.
    await Promise.all(workers.map((worker) => worker.catch((error: unknown) => run.abort(error))));
    run.signal.throwIfAborted();
  } finally {
    options.signal?.removeEventListener("abort", onAbort);
  }
  return episodes;
}

/** A task that occurs twice gets rollouts 0..2n-1, so that ids and seeds stay distinct. */
function listRollouts<Row>(tasks: readonly Task<Row>[], n: number): Rollout<Row>[] {
  const seen = new Map<string, number>();
  return tasks.flatMap((task, order) => {
    const first = seen.get(task.id) ?? 0;
    seen.set(task.id, first + n);
    return Array.from({ length: n }, (_, index) => ({ task, order, rollout: first + index }));
  });
}

async function runRollout<Row>(
  options: RunRolloutsOptions<Row>,
  { task, order, rollout }: Rollout<Row>,
  live: Set<AbortController>,
  stop: AbortSignal,
): Promise<Episode> {
  const { workflow, client, purpose, timeoutSeconds, retryLimit, raiseOnError, onRetry } = options;
  const start = performance.now();
  for (let attempt = 0; ; attempt++) {
    stop.throwIfAborted();
    const abort = new AbortController();
    live.add(abort);
    const result = await runAttempt({
      ...{ task, workflow, client, purpose, order, rollout, attempt, timeoutSeconds, abort },
    }).finally(() => live.delete(abort));
    const { failure, error } = result;
    if (error instanceof ModelCallError && error.cause instanceof UserError) throw error.cause;
    if (failure && failure.boundary !== "timeout") {
      if (attempt < retryLimit) {
        onRetry?.({ taskId: task.id, rollout, attempt, failure });
        continue;
      }
      if (raiseOnError) throw rolloutError(task, rollout, attempt, failure, error);
    }
    return toEpisode(task, rollout, attempt, result, (performance.now() - start) / 1000);
  }
}

function toEpisode(task: Task, rollout: number, retries: number, attempt: Attempt, seconds: number): Episode {
  const { outcome, failure, termination, ended } = attempt;
  const explanation = outcome?.explanation ?? ended;
  const recorded = attempt.trajectories;
  // An outcome without a model call still counts when rewards are averaged.
  const trajectories = recorded.length > 0 || !outcome ? recorded : [{ name: defaultRole, steps: [], reward: null }];
  for (const trajectory of trajectories) {
    trajectory.reward = outcome?.rewards?.[trajectory.name] ?? null;
    if (outcome && outcome.rewards?.[trajectory.name] === undefined) trajectory.reward = outcome.reward;
  }
  return {
    id: `${task.id}:${rollout}`,
    taskId: task.id,
    rollout,
    trajectories,
    termination,
    correct: outcome?.correct ?? null,
    metrics: { ...outcome?.metrics },
    ...(explanation === undefined ? {} : { explanation }),
    ...(failure ? { failure } : {}),
    retries,
    seconds,
  };
}

function rolloutError(task: Task, rollout: number, retries: number, failure: Failure, error: unknown): RunError {
  const tries = retries === 0 ? "" : ` after ${retries} ${retries === 1 ? "retry" : "retries"}`;
  const frames = failure.stack === undefined ? "" : `\n${ownFrames(failure.stack)}`;
  const mend =
    error instanceof UserError && error.hint !== undefined
      ? error.hint
      : `mend the ${failure.boundary === "model" ? "engine" : failure.boundary} for this task`;
  return new RunError(
    `rollout ${rollout} of task ${task.id} (${task.origin}) failed${tries}: ${failure.message}${frames}`,
    { cause: error, hint: `${mend}, or go on without such rollouts with rllm.workflow.raise_on_error=false` },
  );
}
