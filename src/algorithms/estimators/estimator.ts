/** What an advantage estimator is, and the constants in which the well-known implementations differ. */

export interface EstimatorOptions {
  /** Divide by the standard deviation. */
  std: boolean;
  /** 0: population deviation; 1: sample deviation. */
  ddof: 0 | 1;
  /** Added to the deviation. */
  eps: number;
  /** A group of one: `reward` keeps its reward (mean taken as 0, deviation as 1), `zero` gives it no advantage. */
  singleton: "reward" | "zero";
}

/**
 * All groups of one role at once, so that an estimator may look beyond a group.
 *
 * @param rewards `[groups][members]`, finite
 * @returns the advantages, in the same layout
 */
export type Estimator = (rewards: readonly (readonly number[])[], options: EstimatorOptions) => number[][];

/** Constants of each system's GRPO. LightRFT itself gives NaN for a group of one and forbids it. */
export const estimatorPresets = {
  rllm: { std: true, ddof: 0, eps: 1e-6, singleton: "reward" },
  lightrft: { std: true, ddof: 1, eps: 1e-9, singleton: "zero" },
  verl: { std: true, ddof: 1, eps: 1e-6, singleton: "reward" },
  trl: { std: true, ddof: 1, eps: 1e-4, singleton: "zero" },
} as const satisfies Record<string, EstimatorOptions>;
