/** Times the phases of a step, and records it when it is finished: in the run folder, and for the subscribers. */
import { relative } from "node:path";
import type { Engine } from "../../backends/engine.ts";
import { checkTemplate, describeTemplate } from "../../chat/templates/check-template.ts";
import type { Chat } from "../../chat/types.ts";
import type { Gateway } from "../../gateway/gateway.ts";
import { mean } from "../../statistics.ts";
import type { Metrics, RunEvent } from "../../tracking/events.ts";
import { logEpisodes } from "../../tracking/run-folder/episode-log.ts";
import type { RunFolder } from "../../tracking/run-folder/run-folder.ts";
import type { StepTrainings } from "../../tracking/run-folder/token-values.ts";
import { sampleRows } from "../../tracking/samples.ts";
import { episodeMetrics, rewardMetrics, sampledTokens } from "../../trajectories/metrics.ts";
import type { MemberAdvantage } from "../../trajectories/to-batch.ts";
import type { Episode, Trajectory } from "../../trajectories/types.ts";
import type { Plan } from "../recipe/plan.ts";
import type { EpisodeSource } from "../rollouts/failing-rollouts.ts";
import type { GatheredStep } from "../rollouts/group-episodes.ts";
import type { Credit } from "../update/assign-credit.ts";
import { distributions } from "./distributions.ts";

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
  training: StepTrainings;
  clock: Clock;
  /** The metrics of batching and of the update. */
  metrics: Record<string, number>;
}

type Learned = Pick<FinishedStep, "credit" | "training">;

export interface RecorderParts {
  engine: Pick<Engine, "stats">;
  gateway: Gateway;
  chat: Chat;
  folder: RunFolder | undefined;
  /** How often this process has recovered after the engine had lost the model's state. */
  recoveries: number;
  /** Events that could not be written to the journal. */
  lostEvents(): number;
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
  const { chat, emit, folder, gateway, recoveries } = parts;

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
        // Counted since the run began; absent if the agents do not use the gateway.
        ...Object.fromEntries(Object.entries(gateway.counts()).filter(([, count]) => count > 0)),
      };
      if (rewards.length > 0) counted["reward/mean"] = mean(rewards);
      if (recoveries > 0) counted["run/recoveries"] = recoveries;
      if (parts.lostEvents() > 0) counted["run/journal_events_lost"] = parts.lostEvents();
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
