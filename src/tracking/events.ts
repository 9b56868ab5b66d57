/**
 * Everything that happens in a run, as one union of events. The trainer emits them. Console, files, TensorBoard and
 * the other loggers subscribe.
 */
import { mean } from "../base/values.ts";
import { textOf } from "../chat/messages.ts";
import type { AttemptEvent } from "../rollout/types.ts";
import {
  type Episode,
  type FailureBoundary,
  type FailureKind,
  lastStep,
  type TerminationReason,
} from "../trajectories/types.ts";

/** Values by name, e.g. `{"reward/solver/mean": 0.34}`. May contain NaN and infinities. */
export type Metrics = Readonly<Record<string, number>>;

/** Tokens of each reply, reward of each trajectory, entropy of each sampled token. May contain NaN. */
export interface Distributions {
  response_length: readonly number[];
  reward: readonly number[];
  entropy: readonly number[];
}

/** The metrics of a finished training step. Steps count from 1. */
export interface StepMetrics {
  step: number;
  metrics: Metrics;
}

export type RunEvent =
  | {
      type: "run-start";
      /** The run folder. */
      folder: string;
      totalSteps: number;
      /** The step after which the run continues; 0 for a new run. */
      step: number;
      /** The steps before a resume, oldest first. Read from the run folder, so only while the event is handled. */
      history: Iterable<StepMetrics>;
      /** Sentences about the model and what a step consists of. */
      text: readonly string[];
    }
  /** What the run is doing before or between steps, e.g. "loading the model". */
  | { type: "setup-status"; text: string }
  /** Rollouts of these tasks are queued: of each, `count` from number `first` on. */
  | ({ type: "rollouts-queued"; tasks: readonly QueuedTask[] } & RolloutsOf)
  /** Something happened to a rollout: see `AttemptEvent`. */
  | ({ type: "rollout" } & RolloutsOf & RolloutChange)
  /** `done` of `total` rollouts have ended; `tokens` were sampled so far in this phase. */
  | { type: "rollout-progress"; step: number; done: number; total: number; tokens: number }
  /** `done` of `total` sequences of this step have been trained on. */
  | { type: "update-progress"; step: number; done: number; total: number }
  /** The training loop has ended a phase of a step, e.g. "rollout", "update", "publish", "buffer_wait". */
  | { type: "phase-end"; step: number; name: string; seconds: number }
  /** The sampler uses these weights from now on. */
  | { type: "weights"; step: number; version: number }
  | { type: "step-end"; step: number; total: number; epoch: number; metrics: Metrics; seconds: number }
  /** A few episodes of a validation, or of every `plot_every`th step. */
  | { type: "samples"; step: number; kind: "train" | "validation"; rows: readonly SampleRow[] }
  /** The values of every `plot_every`th step. `limit`: of a reply, in tokens. */
  | { type: "distributions"; step: number; values: Distributions; limit: number }
  /** A plot was written to `file`, a PNG of `width` by `height` pixels. */
  | { type: "plot"; step: number; name: string; file: string; bytes: Uint8Array; width: number; height: number }
  | { type: "validation-start"; step: number }
  | { type: "validation-end"; step: number; metrics: Metrics; seconds: number }
  /** `best`: the validation metric, if this is the best of the checkpoints that are kept. */
  | {
      type: "checkpoint-saved";
      step: number;
      path: string;
      bytes: number;
      seconds: number;
      best?: { metric: string; value: number };
    }
  | { type: "checkpoint-removed"; path: string }
  /** Something was retried, dropped or coerced, and the run continues. */
  | { type: "warning"; text: string }
  /** A line that a rollout's code logged: for log.txt, not for the screen. */
  | { type: "rollout-log"; text: string }
  /** A sentence of the health rules. */
  | { type: "health"; text: string }
  /** `text`: why the run stopped or what failed; `report`: lines to read at the end, e.g. answers before and after. */
  | { type: "run-end"; reason: "done" | "stopped" | "failed"; text?: string; report?: readonly string[] };

/** `step`: in which they began; with asynchronous training a later step may use them. */
interface RolloutsOf {
  step: number;
  purpose: "train" | "validate";
}

export interface QueuedTask {
  task: string;
  first: number;
  count: number;
}

/** `retry`: the attempt failed, another follows. `end`: the episode is complete; `reward` is its first trajectory's. */
export type RolloutChange =
  | AttemptEvent
  | ({ state: "retry"; failure: RolloutFailure } & RolloutIdentity)
  | ({
      state: "end";
      termination: TerminationReason;
      reward: number | null;
      failure?: RolloutFailure;
    } & RolloutIdentity);

type RolloutIdentity = Pick<AttemptEvent, "task" | "rollout" | "attempt">;

interface RolloutFailure {
  kind: FailureKind;
  boundary: FailureBoundary;
  message: string;
}

export interface Subscriber {
  /** Must be quick. May throw only if the disk is full (RunError). */
  event(event: RunEvent): void;
  /** Flushes, and releases resources. Called once, after `run-end`. */
  close(): Promise<void>;
}

/** Passes each event to all, in order. `close` closes all even if one fails, and throws the first error. */
export function subscribers(): Subscriber & { add(...more: readonly Subscriber[]): void } {
  const all: Subscriber[] = [];
  return {
    add(...more) {
      all.push(...more);
    },
    event(event) {
      for (const subscriber of all) subscriber.event(event);
    },
    async close() {
      const results = await Promise.allSettled(all.map((subscriber) => subscriber.close()));
      const failed = results.find((result) => result.status === "rejected");
      if (failed) throw failed.reason;
    },
  };
}

// A few episodes of a step as rows: Weights & Biases and Trackio show them as a table, TensorBoard as text.

export interface SampleRow {
  task: string;
  prompt: string;
  reply: string;
  reward: number | null;
  reason: string;
}

const maxRows = 8;

/** Prefers different tasks to several rollouts of one. */
export function sampleRows(episodes: readonly Episode[]): SampleRow[] {
  const ordered = [...episodes].sort((left, right) => left.rollout - right.rollout);
  return ordered.slice(0, maxRows).map(({ id, trajectories, explanation, failure }) => {
    const last = lastStep(trajectories);
    const reward = failure ? null : (trajectories[0]?.reward ?? null);
    return {
      task: id,
      prompt: textOf(last?.messages.findLast(({ role }) => role !== "assistant")?.content ?? ""),
      reply: last?.text ?? "",
      reward: Number.isFinite(reward) ? reward : null,
      reason: failure?.message ?? explanation ?? "",
    };
  });
}

/** For TensorBoard, whose text tab renders Markdown. */
export function samplesMarkdown(rows: readonly SampleRow[]): string {
  const toCell = (text: string) =>
    text
      .replaceAll("&", "&amp;")
      .replaceAll("<", "&lt;")
      .replaceAll("|", "\\|")
      .replaceAll(/\s*\n\s*/g, " ");
  const lines = rows.map(({ task, prompt, reply, reward, reason }) => {
    const cells = [task, prompt, reply, reward === null ? "unknown" : String(reward), reason];
    return `| ${cells.map(toCell).join(" | ")} |`;
  });
  return ["| task | prompt | reply | reward | reason |", "|---|---|---|---|---|", ...lines].join("\n");
}

// The few values of a step that people watch. The only place that knows which metrics hold them.

/** Every `{prefix}/{role}/{suffix}` with its role. */
export function rolesOf(metrics: Metrics, prefix: string, suffix: string): { role: string; value: number }[] {
  return Object.entries(metrics).flatMap(([name, value]) => {
    const matches = name.startsWith(`${prefix}/`) && name.endsWith(`/${suffix}`);
    const role = name.slice(prefix.length + 1, -suffix.length - 1);
    return matches && role !== "" && !role.includes("/") ? [{ role, value }] : [];
  });
}

/** Combines the metric's values over the roles that have it; undefined if none has. */
function overRoles(metrics: Metrics, prefix: string, suffix: string, combine: (values: number[]) => number) {
  const values = rolesOf(metrics, prefix, suffix).map(({ value }) => value);
  return values.length === 0 ? undefined : combine(values);
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

export function stepSummary(metrics: Metrics) {
  const { "batch/solve_all": all, "batch/solve_partial": partial, "batch/num_tasks": tasks } = metrics;
  const isKnown = all !== undefined && partial !== undefined && tasks !== undefined;
  return {
    reward: metrics["reward/mean"] ?? overRoles(metrics, "reward", "mean", mean),
    /** Tasks that at least one rollout solved. The metrics are shares of the tasks. */
    solved: isKnown ? Math.round((all + partial) * tasks) : undefined,
    tasks,
    /** Groups whose rewards differ: only those teach something. */
    informative: overRoles(metrics, "batch", "informative", sum),
    groups: overRoles(metrics, "batch", "total", sum),
    loss: metrics["actor/pg_loss"] ?? metrics["actor/loss"],
    kl: metrics["actor/kl_loss"] ?? metrics["actor/ppo_kl"],
    gradNorm: metrics["actor/grad_norm"],
    learningRate: metrics["actor/lr"],
    /** Nats per token. */
    entropy: metrics["actor/entropy"] ?? metrics["actor/entropy_loss"],
    /** Seconds. Asynchronous training samples all the time, so only the wait for rollouts counts. */
    sampling: metrics["time/rollout"] ?? metrics["time/buffer_wait"],
    training: metrics["time/update"],
    validation: metrics["time/validation"],
    saving: metrics["time/save"],
    tokensPerSecond: metrics["perf/throughput"],
  };
}

// Numbers as text for people. Numbers of the same magnitude have the same length.

/** Three decimals, fewer for large numbers, an exponent for very small and very large ones: 0.342, 12346, 1.2e-5. */
export function formatNumber(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return String(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return size >= 1000 ? value.toFixed(0) : size >= 100 ? value.toFixed(1) : value.toFixed(3);
}

/** `1e-3`, `2.5e-5`. */
export function formatRate(value: number): string {
  return value === 0 ? "0" : value.toExponential(1).replace(".0e", "e").replace("e+", "e");
}

/** `1,234`. */
export function formatCount(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `+0.09`, `-0.10`. */
export function formatChange(value: number): string {
  const text = value.toFixed(2);
  return text.startsWith("-") && Number(text) !== 0 ? text : `+${text.replace("-", "")}`;
}

/** Seconds as `12.3 s`, `2 min 05 s`, `3 h 20 min`, `2 d 4 h`. */
export function formatSeconds(seconds: number): string {
  if (!Number.isFinite(seconds)) return "?";
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
