/** The estimators by the names that a configuration gives them. */
import { type Baseline, compareRewards, type Scale } from "./compare-rewards.ts";
import type { AdvantageEstimator } from "./estimator.ts";
import { passAtK } from "./pass-at-k.ts";

export interface EstimatorSpec {
  /** One figure a trajectory. */
  compare: AdvantageEstimator;
  /** The tokens of the batch are whitened: always, or under constants that say so. */
  whitens?: "always" | "by-preset";
  /** What the engine or the rollouts must give besides rewards and log-probabilities. */
  needs?: "values" | "concentration" | "greedy_baseline";
}

const comparing =
  (baseline: Baseline, scale: Scale): AdvantageEstimator =>
  (groups, options) =>
    compareRewards(groups, { baseline, scale }, options);

const asIs = comparing("none", "none");

/** DeepSeekMath (arXiv 2402.03300); without the deviation Dr. GRPO (arXiv 2503.20783). */
const grpo: AdvantageEstimator = (groups, options) =>
  compareRewards(groups, { baseline: "group", scale: options.std ? "group" : "none" }, options);

/** A group of one has nothing to be compared with here, whatever the constants say of it. */
const reinforcePlusPlusBaseline: AdvantageEstimator = (groups, options) =>
  options.whitens === "tokens"
    ? comparing("group", "none")(groups, options)
    : comparing("group", "differences")(groups, { ...options, singleton: "zero" });

export const estimators = {
  grpo: { compare: grpo },
  /** LightRFT's name of it. */
  group_norm: { compare: grpo },
  /** Centred only; arXiv 2503.20783. */
  dr_grpo: { compare: comparing("group", "none") },
  reinforce: { compare: asIs },
  /** LightRFT's name of the centred reward. */
  reinforce_baseline: { compare: comparing("group", "none") },
  /** arXiv 2501.03262. */
  reinforce_plus_plus: { compare: asIs, whitens: "always" },
  reinforce_plus_plus_baseline: { compare: reinforcePlusPlusBaseline, whitens: "by-preset" },
  /** Leave one out; arXiv 2402.14740. */
  rloo: { compare: comparing("others", "none") },
  /** Compared over the whole batch. */
  prpo: { compare: comparing("batch", "batch") },
  /** The advantage that LightRFT's CPGD is meant to have; arXiv 2505.12504. */
  cpgd: { compare: comparing("batch", "batch") },
  /** arXiv 1506.02438. */
  gae: { compare: asIs, whitens: "always", needs: "values" },
  /** Against the greedy reply; arXiv 2310.10505. */
  remax: { compare: comparing("given", "none"), needs: "greedy_baseline" },
  /** Against the mean weighted by length; arXiv 2505.23585. */
  opo: { compare: comparing("tokens", "none") },
  /** arXiv 2504.02546. */
  gpg: { compare: comparing("group", "nonzero") },
  grpo_passk: { compare: passAtK },
  optimal_token_baseline: { compare: asIs, needs: "concentration" },
  /** Over the group's mean: rare successes weigh more. */
  maxrl: { compare: comparing("group", "mean") },
} as const satisfies Record<string, EstimatorSpec>;

export type EstimatorName = keyof typeof estimators;
