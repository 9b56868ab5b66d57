/** What a finished step leaves in the run folder and tells its subscribers. */

import { RunError } from "../errors.ts";
import { mean } from "../statistics.ts";
import { health } from "../tracking/health.ts";
import { episodeMetrics } from "../trajectories/episode-metrics.ts";
import { groupMetrics } from "../trajectories/group-metrics.ts";
import type { Episode, TrajectoryGroup } from "../trajectories/types.ts";
import type { Clock } from "./clock.ts";
import { sampledTokens } from "./collect-episodes.ts";
import type { Run } from "./run.ts";
import type { Update } from "./update-policy.ts";

export interface FinishedStep {
  epoch: number;
  episodes: readonly Episode[];
  groups: readonly TrajectoryGroup[];
  /** `[groups][members]` */
  advantages: readonly (readonly number[])[];
  update: Update;
  clock: Clock;
  /** Counts of grouping and batching. */
  metrics: Record<string, number>;
}

/** @throws RunError when updates failed `max_bad_steps` times in a row */
export async function record(run: Run, finished: FinishedStep): Promise<void> {
  const { progress, plan, config, history } = run;
  const { step } = progress;
  const { epoch, episodes, groups, advantages, update, clock } = finished;
  const times = clock.metrics();
  const seconds = times["time/step"]!;
  const tokens = episodes.reduce((sum, episode) => sum + sampledTokens(episode), 0);
  const rewards = groups.flatMap(({ members }) => members.map(({ reward }) => reward));
  const metrics: Record<string, number> = {
    "progress/epoch": epoch,
    "progress/done_frac": step / plan.totalSteps,
    ...(rewards.length === 0 ? {} : { "reward/mean": mean(rewards) }),
    ...groupMetrics(groups, advantages),
    ...episodeMetrics(episodes),
    ...finished.metrics,
    ...update.metrics,
    ...times,
    "perf/sampled_tokens": tokens,
    "perf/throughput": tokens / seconds,
    ...(await engineFigures(run)),
  };
  run.folder?.writeEpisodes(step, episodes);
  history.push({ step, metrics });
  run.emit({ type: "step-end", step, total: plan.totalSteps, epoch, metrics, seconds });
  for (const text of health(history, config)) run.emit({ type: "health", text });
  noteBadStep(run, update.failure);
}

/** `memory/*` as they are; the engine's own counters, which begin anew with each of its lives, under `engine/*`. */
async function engineFigures({ engine }: Run): Promise<Record<string, number>> {
  const stats = Object.entries(await engine.stats());
  return Object.fromEntries(
    stats.map(([name, value]) => [name.startsWith("memory/") ? name : `engine/${name}`, value]),
  );
}

function noteBadStep({ progress, config, emit }: Run, failure: string | undefined): void {
  if (failure === undefined) {
    progress.badSteps = 0;
    return;
  }
  progress.badSteps++;
  const { max_bad_steps } = config.rllm.trainer;
  emit({ type: "warning", text: `step ${progress.step}: an update was dropped: ${failure}` });
  if (progress.badSteps < max_bad_steps) return;
  throw new RunError(`${progress.badSteps} steps in a row ended without a finite update; the last: ${failure}`, {
    hint: "lower training.learning_rate or set local.dtype=float32, then go on from the last checkpoint with --resume",
  });
}
