/** Measures the published policy on the validation tasks, and on the validation data of the run's source. */
import { mean } from "../base/values.ts";
import { batches, type Dataset } from "../data/dataset.ts";
import type { RunEvent } from "../tracking/events.ts";
import type { Episode } from "../trajectories/types.ts";
import type { Outage } from "./failures.ts";
import type { Recorder } from "./record.ts";
import type { Attempts, Rollouts } from "./rollouts.ts";
import type { Validation } from "./state.ts";

export interface ValidationOptions {
  /** Tasks that are attempted together; -1: all. */
  atOnce: number;
  attempts: Attempts;
}

export interface ValidationParts {
  /** Tasks to attempt, if there are some. */
  dataset: Dataset<unknown> | undefined;
  /** Metrics of the run's source, if it has validation data. */
  measure: (() => Promise<Record<string, number>>) | undefined;
  rollouts: Rollouts;
  recorder: Recorder;
  emit(event: RunEvent): void;
}

/**
 * Validates after `step` (0: before training).
 *
 * @param outage decides what happens if all rollouts fail
 */
export async function validate(
  parts: ValidationParts,
  options: ValidationOptions,
  step: number,
  outage: Outage,
): Promise<Validation> {
  const { dataset, measure, recorder, emit } = parts;
  const start = performance.now();
  emit({ type: "validation-start", step });
  const metrics: Record<string, number> = { ...(await measure?.()) };
  let episodes: readonly Episode[] = [];
  if (dataset) {
    episodes = await attemptAll(dataset, parts.rollouts, options, step, outage);
    Object.assign(metrics, validationMetrics(episodes, dataset.name, options.attempts.rollouts));
    recorder.episodes({ mode: "val", step }, episodes);
  }
  const seconds = (performance.now() - start) / 1000;
  emit({ type: "validation-end", step, metrics, seconds });
  return { step, metrics, episodes };
}

async function attemptAll(
  dataset: Dataset<unknown>,
  rollouts: Rollouts,
  { atOnce, attempts }: ValidationOptions,
  step: number,
  outage: Outage,
): Promise<Episode[]> {
  let episodes: Episode[];
  do {
    episodes = [];
    for (const tasks of batches(dataset, atOnce)) {
      episodes.push(...(await rollouts.collect({ ...attempts, tasks, step })));
    }
  } while (await outage.retry({ mode: "val", step }, episodes));
  return episodes;
}

/**
 * `val/reward` and `val/{source}/reward` (mean over episodes with a known reward), `val/{source}/pass@1` (share of the
 * episodes that solved their task) and `pass@n` (share of the tasks that any of their n rollouts solved), how many
 * outcomes are unknown (`val/unknown`) and how many rollouts failed (`val/failed`, `val/failures/{kind}`). An episode
 * without a verdict of its own counts as solved from a reward of 1.
 */
export function validationMetrics(episodes: readonly Episode[], source: string, n: number): Record<string, number> {
  const rewards: number[] = [];
  const solved: number[] = [];
  const tasks = new Map<string, number>();
  for (const episode of episodes) {
    const verdict = verdictOf(episode);
    if (verdict.reward === null) continue;
    rewards.push(verdict.reward);
    solved.push(Number(verdict.solved));
    tasks.set(episode.taskId, Math.max(tasks.get(episode.taskId) ?? 0, Number(verdict.solved)));
  }
  const failures = episodes.flatMap(({ failure }) => failure ?? []);
  const counts: Record<string, number> = {
    "val/unknown": episodes.length - rewards.length,
    "val/failed": failures.length,
  };
  for (const { kind } of failures) counts[`val/failures/${kind}`] = (counts[`val/failures/${kind}`] ?? 0) + 1;
  if (rewards.length === 0) return counts;
  return {
    "val/reward": mean(rewards),
    [`val/${source}/reward`]: mean(rewards),
    [`val/${source}/pass@1`]: mean(solved),
    ...(n > 1 ? { [`val/${source}/pass@${n}`]: mean([...tasks.values()]) } : {}),
    ...counts,
  };
}

/** The reward of an episode, null if it is unknown, and whether its task counts as solved. */
export function verdictOf({ trajectories, correct }: Episode): { reward: number | null; solved: boolean } {
  const reward = trajectories[0]?.reward ?? null;
  return { reward, solved: reward !== null && (correct ?? reward >= 1) };
}
