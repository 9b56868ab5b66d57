/** The computation behind most estimators: `(reward - baseline) / scale`. Estimators differ in baseline and scale. */
import { allEqual, mean, standardDeviation } from "../../statistics.ts";
import type { CompareRewards, EstimatorOptions, Rewards } from "./estimator.ts";

/**
 * - `none`: 0
 * - `group`, `batch`: the mean of the group, or of all groups
 * - `others`: the mean of the other members of the group
 * - `tokens`: the group's mean, weighted by length
 * - `given`: the baseline in the group
 */
export type Baseline = "none" | "group" | "others" | "tokens" | "batch" | "given";

/**
 * - `none`: 1
 * - `group`, `batch`: the standard deviation of the group's rewards, or of all rewards
 * - `differences`: the standard deviation of all differences
 * - `mean`: the group's mean
 * - `nonzero`: the share of rewards that are not 0
 */
export type Scale = "none" | "group" | "batch" | "differences" | "mean" | "nonzero";

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
export const passAtK: CompareRewards = (groups, { std, ddof, eps }) =>
  groups.map(({ rewards }) => {
    const [best, second] = rewards.toSorted((a, b) => b - a);
    if (best === undefined || second === undefined) return rewards.map(() => 0);
    const lead = (best - second) / (std ? standardDeviation(rewards, ddof) + eps : 1);
    const leader = rewards.indexOf(best);
    return rewards.map((_, index) => (index === leader ? lead : 0));
  });
