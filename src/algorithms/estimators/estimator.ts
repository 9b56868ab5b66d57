/** The interface of an advantage estimator, and the constants in which the well-known implementations differ. */

export interface EstimatorOptions {
  /** grpo and grpo_passk: divide by the standard deviation. */
  std: boolean;
  /** 0: population deviation; 1: sample deviation. */
  ddof: 0 | 1;
  /** Added to the deviation. */
  eps: number;
  /** A group of one: `reward` keeps its reward (mean taken as 0, deviation as 1), `zero` gives it no advantage. */
  singleton: "reward" | "zero";
  /** reinforce_plus_plus_baseline: divide by the deviation of the tokens (verl) or of the trajectories. */
  whitens: "tokens" | "trajectories";
}

/** The rewards of one task and role. */
export interface Rewards {
  /** `[M]`, finite. */
  rewards: readonly number[];
  /** `[M]` number of sampled tokens of each trajectory; required by opo. */
  lengths?: readonly number[];
  /** `[M]` or `[1]`: the reward of the greedy reply to the same task; required by remax. */
  baselines?: readonly number[];
}

/**
 * Takes all groups of one role at once, so that it can also compare across groups.
 *
 * @returns `[groups][members]`: one advantage per trajectory
 */
export type CompareRewards = (groups: readonly Rewards[], options: EstimatorOptions) => number[][];

/** Constants of each system. LightRFT itself refuses groups of one. */
export const estimatorPresets = {
  rllm: { std: true, ddof: 0, eps: 1e-6, singleton: "reward", whitens: "trajectories" },
  lightrft: { std: true, ddof: 1, eps: 1e-9, singleton: "zero", whitens: "trajectories" },
  verl: { std: true, ddof: 1, eps: 1e-6, singleton: "reward", whitens: "tokens" },
  trl: { std: true, ddof: 1, eps: 1e-4, singleton: "zero", whitens: "trajectories" },
} as const satisfies Record<string, EstimatorOptions>;

export type EstimatorPreset = keyof typeof estimatorPresets;
