/** What changes while a run trains: its progress, its last validation, and its models. */
import type { RunningMoments } from "../algorithms/advantages.ts";
import type { Learner, Sampler } from "../backends/engine.ts";
import type { Episode } from "../trajectories/types.ts";
import type { DispatchState } from "./dispatch-window.ts";
import type { Teaching } from "./teachers.ts";

/** What a checkpoint restores besides the weights. Every random draw derives from the step. */
export interface Progress {
  /** Steps done. */
  step: number;
  /** Draws of tasks that those steps made. */
  draws: number;
  /** Steps in a row whose update was dropped because a loss or gradient was not finite. */
  badSteps: number;
  /** Steps in a row in which most rollouts failed. */
  failingSteps?: number;
  /** The current weight of an adaptive KL term; absent before its first change. */
  klWeight?: number | undefined;
  /** State of asynchronous training. */
  dispatch?: DispatchState;
  /** The moments of all rewards so far, if rewards are normalized by them. */
  rewardMoments?: RunningMoments | undefined;
}

/** The results of the validation tasks after a step. */
export interface Validation {
  /** -1: nothing was measured so far. */
  step: number;
  metrics: Readonly<Record<string, number>>;
  /** Task by task. */
  episodes: readonly Episode[];
}

export interface Models {
  sampler: Sampler;
  learner: Learner;
  /** The base model, if a KL term compares with it. */
  reference: Learner | undefined;
  /** Estimates values, if an estimator needs them. */
  critic: Learner | undefined;
  /** The teachers, if the policy learns from some. */
  teaching?: Teaching | undefined;
}
