/** Records a step: its metrics, its distributions, its episodes, and its events. */
import { relative } from "node:path";
import type { Engine } from "../backends/engine.ts";
import { append, mean, spread } from "../base/values.ts";
import { checkTemplate, describeTemplate } from "../chat/renderers.ts";
import type { Chat } from "../chat/types.ts";
import { logEpisodes } from "../tracking/episodes.ts";
import { type Distributions, type Metrics, type RunEvent, sampleRows } from "../tracking/events.ts";
import { type TokenValuesByTrajectory, unpackValues } from "../tracking/json-lines.ts";
import type { RunFolder } from "../tracking/run-folder.ts";
import type { MemberAdvantage } from "../trajectories/batch.ts";
import type { GatheredStep } from "../trajectories/groups.ts";
import {
  type Episode,
  failureKinds,
  lengthLimits,
  type Trajectory,
  terminationReasons,
} from "../trajectories/types.ts";
import { type Credit, rewardMetrics } from "./credit.ts";
import type { EpisodeSource } from "./failures.ts";
import type { Plan } from "./plan.ts";

// The values of a step whose distribution the plots show.

/** @param trainings undefined: the entropy is unknown */
export function distributions(
  episodes: readonly Episode[],
  trainings: TokenValuesByTrajectory | undefined,
): Distributions {
  const trajectories = episodes.flatMap((episode) => episode.trajectories);
  return {
    response_length: trajectories.flatMap(({ steps }) => steps.map(({ tokens }) => tokens.length)),
    reward: trajectories.flatMap(({ reward }) => reward ?? []),
    entropy: trajectories.flatMap((trajectory) =>
      trajectory.steps.flatMap(({ tokens }, index) => [
        ...(unpackValues(trainings?.get(trajectory)?.[index]?.entropy, tokens.length) ?? []),
      ]),
    ),
  };
}

// Metrics of a batch: how many tasks were solved, how episodes ended, how long replies were; rewards and advantages.

/**
 * `batch/num_tasks`, `batch/solve_{none,all,partial}` (shares of the tasks whose outcome is known),
 * `batch/termination_reason/*` (shares of the episodes), `batch/num_episodes`, `batch/failed_episodes` (how many failed),
 * `batch/failed_episodes_rewarded` (how many of those have a reward, see `rllm.workflow.on_agent_error`),
 * `batch/failures/{kind}` and `batch/retries/{kind}` (failed episodes, and retried attempts), `batch/{name}` for each metric
 * of a workflow (mean over the episodes that have it), `response_length/*` and `prompt_length/*` over model calls.
 * `response_length/clip_ratio` is the share of replies that a limit cut off, `response_length/cut_off_by/*` the share that
 * each limit cut off.
 */
export function episodeMetrics(episodes: readonly Episode[]): Record<string, number> {
  return {
    ...solveMetrics(episodes),
    ...terminationMetrics(episodes),
    ...workflowMetrics(episodes),
    ...lengthMetrics(episodes),
  };
}

/** Number of tokens that were sampled in an episode. */
export function sampledTokens({ trajectories }: Episode): number {
  return trajectories.flatMap(({ steps }) => steps).reduce((sum, { tokens }) => sum + tokens.length, 0);
}

function solveMetrics(episodes: readonly Episode[]): Record<string, number> {
  const outcomes = new Map<string, boolean[]>();
  for (const { taskId, correct } of episodes) {
    if (correct !== null) append(outcomes, taskId, correct);
  }
  const tasks = [...outcomes.values()];
  const share = (test: (known: boolean[]) => boolean) => tasks.filter(test).length / tasks.length;
  const numTasks = { "batch/num_tasks": new Set(episodes.map(({ taskId }) => taskId)).size };
  if (tasks.length === 0) return numTasks;
  return {
    ...numTasks,
    "batch/solve_none": share((known) => !known.includes(true)),
    "batch/solve_all": share((known) => !known.includes(false)),
    "batch/solve_partial": share((known) => known.includes(true) && known.includes(false)),
  };
}

function terminationMetrics(episodes: readonly Episode[]): Record<string, number> {
  if (episodes.length === 0) return {};
  const shares = terminationReasons.map((reason) => [
    `batch/termination_reason/${reason}`,
    episodes.filter(({ termination }) => termination === reason).length / episodes.length,
  ]);
  return {
    ...Object.fromEntries(shares),
    ...failureMetrics(episodes),
  };
}

function failureMetrics(episodes: readonly Episode[]): Record<string, number> {
  const failed = episodes.filter(({ failure }) => failure !== undefined);
  const retriedAfter = episodes.flatMap((episode) => episode.retriedAfter ?? []);
  const byKind = failureKinds.flatMap((kind) => [
    [`batch/failures/${kind}`, failed.filter(({ failure }) => failure?.kind === kind).length],
    [`batch/retries/${kind}`, retriedAfter.filter((failure) => failure.kind === kind).length],
  ]);
  return {
    "batch/num_episodes": episodes.length,
    "batch/failed_episodes": failed.length,
    "batch/failed_episodes_rewarded": failed.filter(isRewarded).length,
    "batch/retries": episodes.reduce((total, { retries }) => total + retries, 0),
    ...Object.fromEntries(byKind),
  };
}

const isRewarded = ({ trajectories }: Episode) => trajectories.some(({ reward }) => reward !== null);

export function workflowMetrics(episodes: readonly Episode[]): Record<string, number> {
  const values = new Map<string, number[]>();
  for (const { metrics } of episodes) {
    for (const [name, value] of Object.entries(metrics)) append(values, name, value);
  }
  return Object.fromEntries(Array.from(values, ([name, given]) => [`batch/${name}`, mean(given)]));
}

function lengthMetrics(episodes: readonly Episode[]): Record<string, number> {
  const steps = episodes.flatMap(({ trajectories }) => trajectories.flatMap((trajectory) => trajectory.steps));
  if (steps.length === 0) return {};
  return {
    ...spread(
      "response_length",
      steps.map(({ tokens }) => tokens.length),
    ),
    "response_length/clip_ratio": steps.filter(({ stopReason }) => stopReason === "length").length / steps.length,
    ...Object.fromEntries(
      lengthLimits.map((limit) => [
        `response_length/cut_off_by/${limit}`,
        steps.filter(({ cutOffBy }) => cutOffBy === limit).length / steps.length,
      ]),
    ),
    ...spread(
      "prompt_length",
      steps.map(({ promptTokens }) => promptTokens.length),
    ),
  };
}

// Times the phases of a step, and records it when it is finished: in the run folder, and for the subscribers.

/** Wall-clock seconds of the training loop, by phase. Each moment belongs to exactly one phase. */
export interface Clock {
  /** Ends a phase, which began with the last lap. */
  lap(name: string): void;
  /** Ends the step: `time/{phase}` and their sum `time/step`, in seconds. The next step begins here. */
  endStep(): Record<string, number>;
}

/** @param onLap called with each phase as it ends */
export function startClock(onLap: (name: string, seconds: number) => void = () => {}): Clock {
  let last = performance.now();
  let laps: Record<string, number> = {};
  return {
    lap(name) {
      const now = performance.now();
      const seconds = (now - last) / 1000;
      laps[name] = (laps[name] ?? 0) + seconds;
      last = now;
      onLap(name, seconds);
    },
    endStep() {
      const seconds = Object.values(laps).reduce((sum, lap) => sum + lap, 0);
      const phases = Object.entries(laps).map(([name, lap]) => [`time/${name}`, lap]);
      laps = {};
      return { ...Object.fromEntries(phases), "time/step": seconds };
    },
  };
}

export interface RecordOptions {
  plan: Plan;
  /** Number of steps from one plot and sample of episodes to the next; 0: never. */
  plotEvery: number;
  /** Folder of readable episodes; undefined: none are written. */
  episodeLog: string | undefined;
  /** Tokens of one reply. */
  maxResponseLength: number;
}

interface FinishedStep {
  step: number;
  gathered: GatheredStep;
  credit: Credit;
  training: TokenValuesByTrajectory;
  clock: Clock;
  /** The metrics of batching and of the update. */
  metrics: Record<string, number>;
}

type Learned = Pick<FinishedStep, "credit" | "training">;

export interface RecorderParts {
  engine: Pick<Engine, "stats">;
  /** How calls to the gateway ended since the run began; empty if the agents do not use it. */
  gatewayCounts: Readonly<Record<string, number>>;
  chat: Chat;
  folder: RunFolder | undefined;
  /** How often this process has recovered after the engine had lost the model's state. */
  recoveries: number;
  /** Undefined: no events are kept. */
  journal: { readonly lost: number } | undefined;
  /** Takes the metrics of each step, in order; returns the warnings of the health rules. */
  health(metrics: Metrics): string[];
  emit(event: RunEvent): void;
}

export interface Recorder {
  step(finished: FinishedStep): Promise<void>;
  /**
   * Keeps episodes in the run folder, and readable files and plots if configured.
   * @throws RunError if the run folder cannot be written; the rest only warns
   */
  episodes(source: EpisodeSource, episodes: readonly Episode[], learned?: Learned): void;
}

export function createRecorder(parts: RecorderParts, options: RecordOptions): Recorder {
  const { chat, emit, folder, journal, recoveries } = parts;

  function keepEpisodes({ mode, step }: EpisodeSource, episodes: readonly Episode[], learned?: Learned): void {
    if (mode === "train") folder?.writeEpisodes(step, withTraining(episodes, learned));
    else folder?.writeEpisodes(step, episodes, "validation");
    const { plotEvery, episodeLog, plan } = options;
    const isPlotted = plotEvery > 0 && step % plotEvery === 0;
    if (folder && episodes.length > 0 && (mode === "val" || isPlotted)) {
      emit({ type: "samples", step, kind: mode === "val" ? "validation" : "train", rows: sampleRows(episodes) });
    }
    if (folder && mode === "train" && isPlotted) {
      const values = distributions(episodes, learned?.training);
      emit({ type: "distributions", step, values, limit: options.maxResponseLength });
    }
    try {
      if (episodeLog !== undefined) {
        const epoch = plan.stepsPerEpoch > 0 ? Math.max(0, Math.floor((step - 1) / plan.stepsPerEpoch)) : 0;
        logEpisodes(episodeLog, { mode, step, epoch }, episodes);
      }
    } catch (error) {
      const where = episodeLog ?? relative(process.cwd(), folder?.path ?? ".");
      const text = `step ${step}: episode files could not be written to ${where}: ${error}`;
      emit({ type: "warning", text });
    }
  }

  return {
    episodes: keepEpisodes,
    async step({ step, gathered, credit, training, clock, metrics: given }) {
      const { epoch, episodes, groups } = gathered;
      const { totalSteps } = options.plan;
      const rewards = groups.flatMap(({ members }) => members.map(({ reward }) => reward));
      const counted: Record<string, number> = {
        "progress/epoch": epoch,
        "progress/done_frac": step / totalSteps,
        ...rewardMetrics(groups),
        ...episodeMetrics(episodes),
        ...gathered.counts,
        ...credit.metrics,
        ...given,
        ...engineMetrics(await parts.engine.stats()),
        ...parts.gatewayCounts,
      };
      if (rewards.length > 0) counted["reward/mean"] = mean(rewards);
      if (recoveries > 0) counted["run/recoveries"] = recoveries;
      if (journal && journal.lost > 0) counted["run/journal_events_lost"] = journal.lost;
      keepEpisodes({ mode: "train", step }, episodes, { credit, training });
      clock.lap("record");
      const times = clock.endStep();
      const metrics = { ...counted, ...times, ...speed(times, episodes) };
      emit({ type: "step-end", step, total: totalSteps, epoch, metrics, seconds: times["time/step"] ?? 0 });
      for (const text of parts.health(metrics)) emit({ type: "health", text });
      clock.lap("logging");
      // Only after an episode with several turns. A health rule checks how the template treats thinking.
      if (step === 1 && (given["batch/steps_per_traj/max"] ?? 0) > 1) {
        const found = { ...checkTemplate(chat), dropsReasoning: false };
        for (const text of describeTemplate(found, chat)) emit({ type: "warning", text });
      }
    },
  };
}

/** Adds each trajectory's advantage, and what the update computed for its tokens, so that people can see them. */
function withTraining(episodes: readonly Episode[], learned: Learned | undefined): readonly Episode[] {
  if (learned === undefined) return episodes;
  const { credit, training } = learned;
  const found = new Map<Trajectory, MemberAdvantage | undefined>();
  for (const [group, { members }] of credit.groups.entries()) {
    for (const [member, { trajectory }] of members.entries()) {
      found.set(trajectory, credit.advantages[group]?.[member]);
    }
  }
  const kept = (trajectory: Trajectory) => ({
    ...trajectory,
    advantage: found.get(trajectory),
    training: training.get(trajectory) ?? null,
  });
  return episodes.map((episode) => ({ ...episode, trajectories: episode.trajectories.map(kept) }));
}

/** Validation and saving count for the time of the step, but not for its throughput. */
function speed(times: Record<string, number>, episodes: readonly Episode[]): Record<string, number> {
  const { "time/step": seconds = 0, "time/validation": validation = 0, "time/save": save = 0 } = times;
  const tokens = episodes.reduce((sum, episode) => sum + sampledTokens(episode), 0);
  const metrics: Record<string, number> = {
    "perf/sampled_tokens": tokens,
    "perf/throughput": tokens / (seconds - validation - save),
  };
  const waited = times["time/buffer_wait"];
  if (waited !== undefined) metrics["async/trainer_idle_ratio"] = waited / seconds;
  return metrics;
}

/** `memory/*` and `rollout/*` keep their names; the engine's own counters, which restart with the engine, are `engine/*`. */
function engineMetrics(stats: Record<string, number>): Record<string, number> {
  return Object.fromEntries(
    Object.entries(stats).map(([name, value]) => [/^(memory|rollout)\//.test(name) ? name : `engine/${name}`, value]),
  );
}
