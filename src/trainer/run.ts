/** Everything a run has at hand while it trains, and the few numbers that change from step to step. */

import type { Workflow } from "../agents/types.ts";
import type { RunningMoments } from "../algorithms/rewards/running-moments.ts";
import type { Engine, Learner, Sampler } from "../backends/engine.ts";
import type { Chat } from "../chat/types.ts";
import type { Config } from "../config/schema.ts";
import type { Gateway } from "../gateway/gateway.ts";
import type { Metrics, RunEvent } from "../tracking/events.ts";
import type { RunFolder } from "../tracking/run-folder.ts";
import type { Experiment } from "./experiment.ts";
import type { Plan } from "./plan.ts";
import type { StrayErrors } from "./stray-errors.ts";

/** What a checkpoint has to bring back besides the weights; every random draw derives from the step. */
export interface Progress {
  /** Steps done. */
  step: number;
  /** Draws of tasks that those steps made. */
  draws: number;
  /** Steps in a row whose update was dropped because a loss or gradient was not finite. */
  badSteps: number;
  /** Steps in a row in which most rollouts failed. */
  failingSteps?: number;
  /** Where an adaptive KL weight stands; absent before its first change. */
  klWeight?: number;
  /** Of asynchronous training. */
  dispatch?: DispatchState;
  /** Of all rewards so far, where they are normalised by them. */
  rewardMoments?: RunningMoments;
}

/** One dispatch of a task: its number in the sampler's order, from 0, and how often it was made before. */
export interface Ticket {
  number: number;
  again: number;
}

/** Where asynchronous training stands with its tasks. */
export interface DispatchState {
  /** Number of the next dispatch. */
  next: number;
  /** Dispatched, but not trained on. */
  pending: Ticket[];
  /** Counted since training began: left out by dynamic sampling, too old, updates of the sampler's weights. */
  filtered: number;
  stale: number;
  syncs: number;
}

export interface Waiting {
  what: string;
  seconds: number;
}

export interface Run {
  readonly config: Config;
  /** What of it may be stored: see `ComposedConfig`. */
  readonly storedConfig: Readonly<Record<string, unknown>>;
  readonly experiment: Experiment<unknown>;
  /** The script's own, or the one that the configuration names. */
  readonly workflow: Workflow<unknown>;
  readonly plan: Plan;
  readonly engine: Engine;
  readonly chat: Chat;
  readonly sampler: Sampler;
  readonly learner: Learner;
  /** Judges what was sampled, where an estimator asks for values. */
  readonly critic: Learner | undefined;
  /** The model behind an HTTP address, for agents that bring clients of their own. */
  readonly gateway: Gateway;
  /** The base model, when it is compared with. */
  readonly reference: Learner | undefined;
  /** Undefined when the run only measures. */
  readonly folder: RunFolder | undefined;
  readonly progress: Progress;
  /** How often this process has gone on by itself after the engine had lost the model's state. */
  readonly recoveries: number;
  /** Takes the metrics of each step, in order; returns what has gone wrong with it. */
  readonly health: (metrics: Metrics) => string[];
  /** Figures of the last validation and the step it followed; -1 before the first. */
  validation: { step: number; metrics: Readonly<Record<string, number>> };
  /** Aborted when the run must stop at once. */
  readonly signal: AbortSignal;
  /** What the user's code threw where nothing awaited it. */
  readonly strays: StrayErrors;
  /** Whether a first Ctrl-C, or an error outside of rollouts, asked to stop after the step under way. */
  stopRequested(): boolean;
  /** Names what the run waits for from here on, for the progress line. */
  watch(waiting: (() => Waiting[]) | undefined): void;
  emit(event: RunEvent): void;
}
