/** Advantage estimators, one definition each. Most are `(reward - baseline) / scale`. */
import { allEqual, mean, standardDeviation } from "../base/values.ts";

// The computation behind most estimators: `(reward - baseline) / scale`. Estimators differ in baseline and scale.

/**
 * - `none`: 0
 * - `group`, `batch`: the mean of the group, or of all groups
 * - `others`: the mean of the other members of the group
 * - `tokens`: the group's mean, weighted by length
 * - `given`: the baseline in the group
 */
type Baseline = "none" | "group" | "others" | "tokens" | "batch" | "given";

/**
 * - `none`: 1
 * - `group`, `batch`: the standard deviation of the group's rewards, or of all rewards
 * - `differences`: the standard deviation of all differences
 * - `mean`: the group's mean
 * - `nonzero`: the share of rewards that are not 0
 */
type Scale = "none" | "group" | "batch" | "differences" | "mean" | "nonzero";

export interface Comparison {
  baseline: Baseline;
  scale: Scale;
}

type Constants = Pick<EstimatorOptions, "ddof" | "eps" | "singleton">;

/**
 * `(R - baseline) / scale` of every reward. Against a mean, equal rewards give exactly 0 despite rounding, since training
 * drops exact zeros. Finite rewards up to 1e100 never give NaN.
 *
 * @returns `[groups][members]`
 */
export function compareRewards(
  groups: readonly Rewards[],
  { baseline, scale }: Comparison,
  constants: Constants,
): number[][] {
  const all = groups.flatMap(({ rewards }) => rewards);
  const compared = groups.map((group) => {
    const { rewards } = group;
    const alone = rewards.length === 1 && withinGroup.has(baseline);
    const ofOne = constants.singleton === "reward" ? rewards : [0];
    return { rewards, differences: alone ? ofOne : baselines[baseline](group, all) };
  });
  const context = { all, differences: compared.flatMap(({ differences }) => differences), ...constants };
  return compared.map(({ rewards, differences }) => {
    const factor = scales[scale](rewards, context);
    return differences.map((difference) => difference * factor);
  });
}

/** Baselines that need a group of at least two. */
const withinGroup: ReadonlySet<Baseline> = new Set(["group", "others", "tokens"]);

const baselines: Record<Baseline, (group: Rewards, all: readonly number[]) => readonly number[]> = {
  none: ({ rewards }) => rewards,
  group: ({ rewards }) => centered(rewards, rewards),
  batch: ({ rewards }, all) => centered(rewards, all),
  others: ({ rewards }) => {
    const factor = rewards.length / (rewards.length - 1);
    return centered(rewards, rewards).map((difference) => difference * factor);
  },
  tokens: ({ rewards, lengths }) => {
    if (lengths === undefined) throw new TypeError("a baseline by tokens needs the lengths of the trajectories");
    const tokens = sum(lengths);
    if (tokens === 0 || allEqual(rewards)) return rewards.map(() => 0);
    const center = sum(lengths.map((length, index) => (rewards[index] ?? 0) * (length / tokens)));
    return rewards.map((reward) => reward - center);
  },
  given: ({ rewards, baselines: given }) => {
    if (given === undefined) throw new TypeError("the groups have no baseline");
    return rewards.map((reward, index) => reward - (given[given.length === 1 ? 0 : index] ?? Number.NaN));
  },
};

interface ScaleContext extends Constants {
  all: readonly number[];
  differences: readonly number[];
}

/** The factor that a group's differences are multiplied by. */
const scales: Record<Scale, (rewards: readonly number[], context: ScaleContext) => number> = {
  none: () => 1,
  group: (rewards, { ddof, eps, singleton }) =>
    1 / ((rewards.length === 1 && singleton === "reward" ? 1 : deviation(rewards, ddof)) + eps),
  batch: (_rewards, { all, ddof, eps }) => 1 / (deviation(all, ddof) + eps),
  differences: (_rewards, { differences, ddof, eps }) => 1 / (deviation(differences, ddof) + eps),
  mean: (rewards, { eps, singleton }) => {
    if (rewards.length === 1 && singleton === "reward") return 1;
    const divisor = mean(rewards) + eps;
    return divisor === 0 ? 0 : 1 / divisor;
  },
  nonzero: (_rewards, { all }) => all.length / Math.max(1, all.filter((reward) => reward !== 0).length),
};

function centered(rewards: readonly number[], of: readonly number[]): number[] {
  if (allEqual(of)) return rewards.map(() => 0);
  const center = mean(of);
  return rewards.map((reward) => reward - center);
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

/** 0 for too few values. */
function deviation(values: readonly number[], ddof: 0 | 1): number {
  return values.length <= ddof ? 0 : standardDeviation(values, ddof);
}

/**
 * GRPO for pass@k (arXiv 2503.19595): the best of a group gets its lead over the second. The others, and a group of one,
 * get 0. Ties have no lead.
 */
const passAtK: CompareRewards = (groups, { std, ddof, eps }) =>
  groups.map(({ rewards }) => {
    const [best, second] = rewards.toSorted((a, b) => b - a);
    if (best === undefined || second === undefined) return rewards.map(() => 0);
    const lead = (best - second) / (std ? standardDeviation(rewards, ddof) + eps : 1);
    const leader = rewards.indexOf(best);
    return rewards.map((_, index) => (index === leader ? lead : 0));
  });

// The built-in estimators by their names in the configuration.

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

const centeredRewards: EstimatorSpec = {
  formula: "`R - mean`",
  source: "2503.20783",
  compare: comparing("group", "none"),
};

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
  dr_grpo: centeredRewards,
  reinforce: { formula: "`R`", source: "Williams 1992", compare: asIs },
  /** LightRFT's name of the centered reward. */
  reinforce_baseline: centeredRewards,
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

// The interface of an advantage estimator, and the constants in which the well-known implementations differ.

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

// Subtracts from each token's return the baseline that minimizes the variance of the gradient estimate.

/** One reply of a group; all arrays are `[T]` over its sampled tokens, and may differ in length within the group. */
export interface BaselineRow {
  /** Return from each token on. */
  returns: readonly number[] | Float32Array | Float64Array;
  /** Log-probability of each token. */
  logprobs: readonly number[] | Float32Array | Float64Array;
  /** Sum of the squared probabilities of all tokens of the vocabulary at that position. */
  sumPiSquared: readonly number[] | Float32Array | Float64Array;
}

/**
 * `W_t = sum over j <= t of 1 - 2 p_j + sum p^2` approximates the squared norm of the gradient up to t. The baseline at t
 * is the mean of the group's returns, weighted by `W_t`. A group of one keeps its returns.
 *
 * @returns `[members][T]` advantages
 */
export function optimalTokenBaseline(group: readonly BaselineRow[]): Float64Array[] {
  if (group.length === 1) return group.map(({ returns }) => Float64Array.from(returns));
  const weightedSums: number[] = [];
  const weightSums: number[] = [];
  for (const { returns, logprobs, sumPiSquared } of group) {
    let weight = 0;
    for (const [token, value] of returns.entries()) {
      weight += 1 - 2 * Math.exp(logprobs[token]!) + sumPiSquared[token]!;
      weightedSums[token] = (weightedSums[token] ?? 0) + value * weight;
      weightSums[token] = (weightSums[token] ?? 0) + weight;
    }
  }
  const baselines = weightedSums.map((weighted, token) => weighted / (weightSums[token]! + 1e-8));
  return group.map(({ returns }) => Float64Array.from(returns, (value, token) => value - baselines[token]!));
}

// Rewards, returns and generalized advantages of the tokens of one sequence.

export interface GaeOptions {
  /** Discount per token. */
  gamma: number;
  /** 1 uses the whole return, 0 one token's reward and the critic. */
  lambda: number;
}

/**
 * The reward is at the last token; the KL to the reference policy is subtracted at every token.
 *
 * @param kl `[T]` estimate of the KL at each sampled token
 * @param coefficient weight of the KL; negative values count as 0
 * @returns `[T]`
 */
export function tokenRewards(tokens: number, reward: number, kl?: ArrayLike<number>, coefficient = 0): Float64Array {
  const weight = Math.max(coefficient, 0);
  return Float64Array.from({ length: tokens }, (_, token) => {
    const given = token === tokens - 1 ? reward : 0;
    return given - weight * (kl?.[token] ?? 0);
  });
}

/**
 * `G_t = r_t + gamma G_{t+1}`, float64.
 *
 * @param rewards `[T]`
 * @returns `[T]`
 */
export function returnsToGo(rewards: ArrayLike<number>, gamma: number): Float64Array {
  const returns = new Float64Array(rewards.length);
  let ahead = 0;
  for (let token = rewards.length - 1; token >= 0; token--) {
    ahead = rewards[token]! + gamma * ahead;
    returns[token] = ahead;
  }
  return returns;
}

/**
 * Generalized advantages (arXiv 1506.02438): `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = delta_t + gamma lambda A_{t+1}`.
 *
 * @param rewards `[T]`
 * @param values `[T]` the critic's value at each token
 * @returns `[T]` advantages, and returns `A + V`, which the critic learns
 */
export function generalizedAdvantages(
  rewards: ArrayLike<number>,
  values: ArrayLike<number>,
  { gamma, lambda }: GaeOptions,
): { advantages: Float64Array; returns: Float64Array } {
  const advantages = new Float64Array(rewards.length);
  const returns = new Float64Array(rewards.length);
  let nextValue = 0;
  let ahead = 0;
  for (let token = rewards.length - 1; token >= 0; token--) {
    ahead = rewards[token]! + gamma * nextValue - values[token]! + gamma * lambda * ahead;
    nextValue = values[token]!;
    advantages[token] = ahead;
    returns[token] = ahead + values[token]!;
  }
  return { advantages, returns };
}
