/** The built-in estimators by their names in the configuration. */
import { type Baseline, compareRewards, passAtK, type Scale } from "./compare-rewards.ts";
import type { CompareRewards } from "./estimator.ts";

/** All that is known of an estimator. The schema, the checks of settings and the guide's table are derived from it. */
export interface EstimatorSpec {
  /** For the guide, in Markdown; `R` is a reply's reward, `mean` and `std` are its group's. */
  formula: string;
  /** For the guide: numbers of arXiv, or other text. */
  source: string;
  /** Returns one advantage per trajectory. */
  compare: CompareRewards;
  /** Reads `std`: divides by the standard deviation, unless it is false. */
  readsStd?: true;
  /** Whiten the tokens of the batch: always, or if the constants' `whitens` is `tokens`. */
  whitens?: "always" | "by-preset";
  /** What the estimator needs in addition to rewards and log-probabilities. */
  needs?: "values" | "concentration" | "greedy_baseline";
}

const comparing =
  (baseline: Baseline, scale: Scale): CompareRewards =>
  (groups, options) =>
    compareRewards(groups, { baseline, scale }, options);

const asIs = comparing("none", "none");

/** Without the deviation it is Dr. GRPO (arXiv 2503.20783). */
const grpo: EstimatorSpec = {
  formula: "`(R - mean) / (std + eps)`; `R - mean` with `norm_adv_by_std_in_grpo: false`",
  source: "2402.03300",
  compare: (groups, options) =>
    compareRewards(groups, { baseline: "group", scale: options.std ? "group" : "none" }, options),
  readsStd: true,
};

const centered: EstimatorSpec = { formula: "`R - mean`", source: "2503.20783", compare: comparing("group", "none") };

const overBatch: EstimatorSpec = {
  formula: "`(R - mean) / std` over the whole batch",
  source: "CPGD: 2505.12504",
  compare: comparing("batch", "batch"),
};

/** A group of one has advantage 0, regardless of the constants. */
const reinforcePlusPlusBaseline: CompareRewards = (groups, options) =>
  options.whitens === "tokens"
    ? comparing("group", "none")(groups, options)
    : comparing("group", "differences")(groups, { ...options, singleton: "zero" });

export const estimators = {
  grpo,
  /** LightRFT's name. */
  group_norm: grpo,
  dr_grpo: centered,
  reinforce: { formula: "`R`", source: "Williams 1992", compare: asIs },
  /** LightRFT's name of the centered reward. */
  reinforce_baseline: centered,
  reinforce_plus_plus: {
    formula: "`R`, whitened over the batch's tokens",
    source: "2501.03262",
    compare: asIs,
    whitens: "always",
  },
  reinforce_plus_plus_baseline: {
    formula: "`R - mean`, divided by the standard deviation over the batch",
    source: "2501.03262",
    compare: reinforcePlusPlusBaseline,
    whitens: "by-preset",
  },
  /** Leave one out. */
  rloo: {
    formula: "`R` minus the mean of the group's other replies",
    source: "2402.14740",
    compare: comparing("others", "none"),
  },
  prpo: overBatch,
  /** LightRFT computes it differently. */
  cpgd: overBatch,
  gae: {
    formula:
      "by token, from a critic's values `V`: `sum of (gamma lam)^k (r + gamma V_next - V)` over the following tokens, whitened over the batch; see below",
    source: "1506.02438",
    compare: asIs,
    whitens: "always",
    needs: "values",
  },
  remax: {
    formula: "`R` minus the reward of the greedy reply (one extra rollout per task)",
    source: "2310.10505",
    compare: comparing("given", "none"),
    needs: "greedy_baseline",
  },
  opo: {
    formula: "`R` minus the group's mean weighted by length",
    source: "2505.23585",
    compare: comparing("tokens", "none"),
  },
  gpg: {
    formula: "`(R - mean) / f`, `f` the share of the batch's rewards that are not 0",
    source: "2504.02546",
    compare: comparing("group", "nonzero"),
  },
  grpo_passk: {
    formula: "the best reply: its lead over the second best, divided by `std + eps` as in grpo; the others: 0",
    source: "2503.19595",
    compare: passAtK,
    readsStd: true,
  },
  optimal_token_baseline: {
    formula:
      "by token: `R - sum W R / sum W` over the group's replies that have this token, `W` the sum of `1 - 2 p + sum p^2` over the tokens so far (p: probabilities at a token); one extra forward pass",
    source: "verl",
    compare: asIs,
    needs: "concentration",
  },
  /** So that rare successes weigh more. */
  maxrl: { formula: "`(R - mean) / mean`", source: "SkyRL", compare: comparing("group", "mean") },
} as const satisfies Record<string, EstimatorSpec>;

export type EstimatorName = keyof typeof estimators;
