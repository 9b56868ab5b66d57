/**
 * What happens in a run, as one union of events. The trainer emits them; console, files, TensorBoard and Weights &
 * Biases are subscribers. Nothing here knows who listens.
 */

import type { SampleRow } from "./samples.ts";

/** Figures by name, e.g. `{"reward/solver/mean": 0.34}`. May hold NaN and infinities. */
export type Metrics = Readonly<Record<string, number>>;

/** The figures of one finished training step. Steps count from 1. */
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
      /** Steps done already: 0, or the step of the checkpoint that the run goes on from. */
      step: number;
      /** Steps done before a resume, oldest first. Read from the run folder, so only while the event is handled. */
      history: Iterable<StepMetrics>;
      /** Sentences for people: the model, what a step is made of. */
      text: readonly string[];
    }
  /** What the run is busy with before or between steps, e.g. "loading the model". */
  | { type: "setup-status"; text: string }
  /** `done` of `total` rollouts have ended; `tokens` were sampled in this phase so far. */
  | { type: "rollout-progress"; step: number; done: number; total: number; tokens: number }
  /** `done` of `total` sequences have been trained on in this step. */
  | { type: "update-progress"; step: number; done: number; total: number }
  | { type: "step-end"; step: number; total: number; epoch: number; metrics: Metrics; seconds: number }
  /** A few episodes of a validation, or of every `plot_every`th step. */
  | { type: "samples"; step: number; kind: "train" | "validation"; rows: readonly SampleRow[] }
  | { type: "validation-start"; step: number }
  | { type: "validation-end"; step: number; metrics: Metrics; seconds: number }
  /** `best`: the validation metric by which it is the best of those kept. */
  | {
      type: "checkpoint-saved";
      step: number;
      path: string;
      bytes: number;
      seconds: number;
      best?: { metric: string; value: number };
    }
  | { type: "checkpoint-removed"; path: string }
  /** Something went another way than asked, and the run goes on: retried, dropped, coerced. */
  | { type: "warning"; text: string }
  /** A line that the code of a rollout logged: for log.txt, not for the screen. */
  | { type: "rollout-log"; text: string }
  /** A sentence of the health rules. */
  | { type: "health"; text: string }
  /** `text`: why it was stopped or what failed; `report`: lines to read at the end, e.g. answers before and after. */
  | { type: "run-end"; reason: "done" | "stopped" | "failed"; text?: string; report?: readonly string[] };

export interface Subscriber {
  /** Must be quick and must not throw for reasons of its own display; a full disk may throw (RunError). */
  event(event: RunEvent): void;
  /** Flushes and lets go of what it holds. Called once, after `run-end`. */
  close(): Promise<void>;
}

/** One subscriber that passes every event on, in order. `close` closes all, even if one fails; the first error is thrown. */
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
