/** The built-in estimators by their names in the configuration. */
import { type Baseline, compareRewards, passAtK, type Scale } from "./compare-rewards.ts";
import type { AdvantageEstimator } from "./estimator.ts";

export interface EstimatorSpec {
  /** Returns one advantage per trajectory. */
  compare: AdvantageEstimator;
  /** Whiten the tokens of the batch: always, or if the constants' `whitens` is `tokens`. */
  whitens?: "always" | "by-preset";
  /** What the estimator needs in addition to rewards and log-probabilities. */
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

/** A group of one has advantage 0, regardless of the constants. */
const reinforcePlusPlusBaseline: AdvantageEstimator = (groups, options) =>
  options.whitens === "tokens"
    ? comparing("group", "none")(groups, options)
    : comparing("group", "differences")(groups, { ...options, singleton: "zero" });

export const estimators = {
  grpo: { compare: grpo },
  /** LightRFT's name of grpo. */
  group_norm: { compare: grpo },
  /** Centered only; arXiv 2503.20783. */
  dr_grpo: { compare: comparing("group", "none") },
  reinforce: { compare: asIs },
  /** LightRFT's name of the centered reward. */
  reinforce_baseline: { compare: comparing("group", "none") },
  /** arXiv 2501.03262. */
  reinforce_plus_plus: { compare: asIs, whitens: "always" },
  reinforce_plus_plus_baseline: { compare: reinforcePlusPlusBaseline, whitens: "by-preset" },
  /** Leave one out; arXiv 2402.14740. */
  rloo: { compare: comparing("others", "none") },
  /** Compared over the whole batch. */
  prpo: { compare: comparing("batch", "batch") },
  /** arXiv 2505.12504; LightRFT computes it differently. */
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
  /** Divided by the group's mean, so that rare successes weigh more. */
  maxrl: { compare: comparing("group", "mean") },
} as const satisfies Record<string, EstimatorSpec>;

export type EstimatorName = keyof typeof estimators;
