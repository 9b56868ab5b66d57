/**
 * Everything that happens in a run, as one union of events. The trainer emits them. Console, files, TensorBoard and
 * the other loggers subscribe.
 */
import type { AttemptLife } from "../rollout/life.ts";
import type { FailureBoundary, FailureKind, TerminationReason } from "../trajectories/types.ts";
import type { SampleRow } from "./samples.ts";

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
  /** Something happened to a rollout: see `AttemptLife`. */
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
  | AttemptLife
  | ({ state: "retry"; failure: RolloutFailure } & RolloutIdentity)
  | ({
      state: "end";
      termination: TerminationReason;
      reward: number | null;
      failure?: RolloutFailure;
    } & RolloutIdentity);

type RolloutIdentity = Pick<AttemptLife, "task" | "rollout" | "attempt">;

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
export function subscribers(all: readonly Subscriber[]): Subscriber {
  return {
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
