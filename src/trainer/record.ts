/** What a finished step leaves in the run folder and tells its subscribers. */

import { checkTemplate, describeTemplate } from "../chat/check-template.ts";
import { RunError } from "../errors.ts";
import { mean } from "../statistics.ts";
import { episodeMetrics } from "../trajectories/episode-metrics.ts";
import { advantageMetrics, rewardMetrics } from "../trajectories/group-metrics.ts";
import { type Credit, figuresOf } from "./assign-credit.ts";
import type { Clock } from "./clock.ts";
import { sampledTokens } from "./collect-episodes.ts";
import { noteFailingStep } from "./failing-rollouts.ts";
import type { GatheredStep } from "./gather-episodes.ts";
import { keepEpisodes } from "./keep-episodes.ts";
import type { Run } from "./run.ts";
import type { Update } from "./update-policy.ts";

export interface FinishedStep {
  gathered: GatheredStep;
  credit: Credit;
  update: Update;
  clock: Clock;
  /** Counts of batching. */
  metrics: Record<string, number>;
}

/** @throws RunError when updates failed `max_bad_steps` times in a row */
export async function record(run: Run, finished: FinishedStep): Promise<void> {
  const { progress, plan } = run;
  const { step } = progress;
  const { gathered, credit, update, clock } = finished;
  const { epoch, episodes, groups } = gathered;
  const tokens = episodes.reduce((sum, episode) => sum + sampledTokens(episode), 0);
  const rewards = groups.flatMap(({ members }) => members.map(({ reward }) => reward));
  const counted: Record<string, number> = {
    "progress/epoch": epoch,
    "progress/done_frac": step / plan.totalSteps,
    ...(rewards.length === 0 ? {} : { "reward/mean": mean(rewards) }),
    ...rewardMetrics(groups),
    ...advantageMetrics(credit.groups, figuresOf(credit)),
    ...episodeMetrics(episodes),
    ...gathered.counts,
    ...credit.metrics,
    ...finished.metrics,
    ...update.metrics,
    ...(await engineFigures(run)),
    ...gatewayFigures(run),
    ...(run.recoveries > 0 ? { "run/recoveries": run.recoveries } : {}),
  };
  keepEpisodes(run, { mode: "train", step }, episodes, credit);
  clock.lap("record");
  const times = clock.endStep();
  const seconds = times["time/step"] ?? 0;
  const metrics = { ...counted, ...times, ...speed(times, seconds, tokens) };
  run.emit({ type: "step-end", step, total: plan.totalSteps, epoch, metrics, seconds });
  for (const text of run.health(metrics)) run.emit({ type: "health", text });
  clock.lap("logging");
  if (step === 1 && (metrics["batch/steps_per_traj/max"] ?? 0) > 1) noteTemplate(run);
  noteFailingStep(run, episodes);
  noteBadStep(run, update.failure);
}

/** Validation and saving count for the time of the step, but not for its throughput. */
function speed(times: Record<string, number>, seconds: number, tokens: number): Record<string, number> {
  const { "time/validation": validation = 0, "time/save": save = 0, "time/buffer_wait": waited } = times;
  return {
    "perf/sampled_tokens": tokens,
    "perf/throughput": tokens / (seconds - validation - save),
    ...(waited === undefined ? {} : { "async/trainer_idle_ratio": waited / seconds }),
  };
}

/** Said once several turns are known to occur; what it does to thinking is a rule of health, once it has done it. */
function noteTemplate({ chat, emit }: Run): void {
  const found = checkTemplate(chat);
  for (const text of describeTemplate({ ...found, dropsReasoning: false }, chat)) emit({ type: "warning", text });
}

/** Counted since the run began; a run whose agents do not use the gateway has none. */
function gatewayFigures({ gateway }: Run): Record<string, number> {
  return Object.fromEntries(Object.entries(gateway.counts()).filter(([, count]) => count > 0));
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
