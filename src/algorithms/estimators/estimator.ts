/** What an advantage estimator is, and the constants in which the well-known implementations differ. */
import type { TrajectoryGroup } from "../../trajectories/types.ts";

export interface EstimatorOptions {
  /** Divide by the standard deviation; read by grpo and grpo_passk, whose name leaves it open. */
  std: boolean;
  /** 0: population deviation; 1: sample deviation. */
  ddof: 0 | 1;
  /** Added to the deviation. */
  eps: number;
  /** A group of one: `reward` keeps its reward (mean taken as 0, deviation as 1), `zero` gives it no advantage. */
  singleton: "reward" | "zero";
  /** reinforce_plus_plus_baseline is scaled by the deviation of its tokens (verl) or of its trajectories. */
  whitens: "tokens" | "trajectories";
}

/** The trajectories of one task and role, as an estimator sees them. */
export interface RewardGroup {
  /** `[M]`, finite. */
  rewards: readonly number[];
  /** `[M]` tokens sampled by each trajectory; asked for by opo. */
  lengths?: readonly number[];
  /** `[M]` or one for all: the reward of the greedy reply to the same task; asked for by remax. */
  baselines?: readonly number[];
  /** `[M]` everything known of each trajectory, for estimators of one's own; absent in a bare computation. */
  members?: TrajectoryGroup["members"];
}

/**
 * All groups of one role at once, so that an estimator may look beyond a group.
 *
 * @returns `[groups][members]`: one figure a trajectory
 * @example
 * const best: AdvantageEstimator = (groups) =>
 *   groups.map(({ rewards }) => rewards.map((reward) => (reward === Math.max(...rewards) ? 1 : 0)));
 */
export type AdvantageEstimator = (groups: readonly RewardGroup[], options: EstimatorOptions) => number[][];

/** Constants of each system. LightRFT itself gives NaN for a group of one and forbids it. */
export const estimatorPresets = {
  rllm: { std: true, ddof: 0, eps: 1e-6, singleton: "reward", whitens: "trajectories" },
  lightrft: { std: true, ddof: 1, eps: 1e-9, singleton: "zero", whitens: "trajectories" },
  verl: { std: true, ddof: 1, eps: 1e-6, singleton: "reward", whitens: "tokens" },
  trl: { std: true, ddof: 1, eps: 1e-4, singleton: "zero", whitens: "trajectories" },
} as const satisfies Record<string, EstimatorOptions>;

export type EstimatorPreset = keyof typeof estimatorPresets;
