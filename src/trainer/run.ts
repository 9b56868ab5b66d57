/** Everything a run has at hand while it trains, and the few numbers that change from step to step. */
import type { Engine, Policy } from "../backends/engine.ts";
import type { Chat } from "../chat/types.ts";
import type { Config } from "../config/schema.ts";
import type { RunEvent, StepMetrics } from "../tracking/events.ts";
import type { RunFolder } from "../tracking/run-folder.ts";
import type { Experiment } from "./experiment.ts";
import type { Plan } from "./plan.ts";

/** What a checkpoint has to bring back besides the weights; every random draw derives from the step. */
export interface Progress {
  /** Steps done. */
  step: number;
  /** Steps in a row whose update was dropped because a loss or gradient was not finite. */
  badSteps: number;
}

export interface Waiting {
  what: string;
  seconds: number;
}

export interface Run {
  readonly config: Config;
  readonly experiment: Experiment<unknown>;
  readonly plan: Plan;
  readonly engine: Engine;
  readonly chat: Chat;
  readonly policy: Policy;
  /** The base model, when the loss has a KL term. */
  readonly reference: Policy | undefined;
  /** Undefined when the run only measures. */
  readonly folder: RunFolder | undefined;
  readonly progress: Progress;
  /** Figures of the steps done, oldest first. */
  readonly history: StepMetrics[];
  /** Figures of the last validation and the step it followed; -1 before the first. */
  validation: { step: number; metrics: Readonly<Record<string, number>> };
  /** Aborted when the run must stop at once. */
  readonly signal: AbortSignal;
  /** Whether a first Ctrl-C asked to stop after the step under way. */
  stopRequested(): boolean;
  /** Names what the run waits for from here on, for the progress line. */
  watch(waiting: (() => Waiting[]) | undefined): void;
  emit(event: RunEvent): void;
}
