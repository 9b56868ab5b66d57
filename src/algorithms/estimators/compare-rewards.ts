/**
 * The one computation behind most estimators: a reward less a baseline, over a scale. What is called an estimator is a
 * choice of the two.
 */
import { allEqual, mean, standardDeviation } from "../../statistics.ts";
import type { EstimatorOptions, RewardGroup } from "./estimator.ts";

/**
 * What a reward is compared with: nothing, its group's mean, the mean of the others in its group, the mean of the
 * group's tokens, the mean of all groups, or a baseline that comes with the group.
 */
export type Baseline = "none" | "group" | "others" | "tokens" | "batch" | "given";

/**
 * What the difference is divided by: nothing, the deviation of its group's rewards, of all rewards, or of all
 * differences, the group's mean, or the share of rewards that are not 0.
 */
export type Scale = "none" | "group" | "batch" | "differences" | "mean" | "nonzero";

export interface Comparison {
  baseline: Baseline;
  scale: Scale;
}

type Constants = Pick<EstimatorOptions, "ddof" | "eps" | "singleton">;

/**
 * `(R - baseline) / scale` of every reward. Equal rewards give exactly 0 against a mean, whatever rounding does to it:
 * exact zeros are left out of training. No rewards give none; finite rewards up to 1e100 never give NaN.
 *
 * @returns `[groups][members]`
 */
export function compareRewards(
  groups: readonly RewardGroup[],
  { baseline, scale }: Comparison,
  constants: Constants,
): number[][] {
  const all = groups.flatMap(({ rewards }) => rewards);
  const differences = groups.map((group) =>
    group.rewards.length === 1 && withinGroup.has(baseline)
      ? group.rewards.map((reward) => (constants.singleton === "reward" ? reward : 0))
      : baselines[baseline](group, all),
  );
  const flat = differences.flat();
  return groups.map(({ rewards }, index) => {
    const factor = scales[scale](rewards, { all, differences: flat, ...constants });
    return differences[index]!.map((difference) => difference * factor);
  });
}

/** Baselines that a group of one cannot give. */
const withinGroup: ReadonlySet<Baseline> = new Set(["group", "others", "tokens"]);

const baselines: Record<Baseline, (group: RewardGroup, all: readonly number[]) => readonly number[]> = {
  none: ({ rewards }) => rewards,
  group: ({ rewards }) => less(rewards, rewards),
  batch: ({ rewards }, all) => less(rewards, all),
  others: ({ rewards }) => {
    const factor = rewards.length / (rewards.length - 1);
    return less(rewards, rewards).map((difference) => difference * factor);
  },
  tokens: ({ rewards, lengths }) => {
    if (lengths === undefined) throw new TypeError("a baseline by tokens needs the lengths of the trajectories");
    const tokens = sum(lengths);
    if (tokens === 0 || allEqual(rewards)) return rewards.map(() => 0);
    const center = sum(rewards.map((reward, index) => reward * (lengths[index]! / tokens)));
    return rewards.map((reward) => reward - center);
  },
  given: ({ rewards, baselines: given }) => {
    if (given === undefined) throw new TypeError("the groups have no baseline");
    return rewards.map((reward, index) => reward - given[given.length === 1 ? 0 : index]!);
  },
};

interface ScaleContext extends Constants {
  all: readonly number[];
  differences: readonly number[];
}

/** The factor of a group's differences. */
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

function less(rewards: readonly number[], of: readonly number[]): number[] {
  if (allEqual(of)) return rewards.map(() => 0);
  const center = mean(of);
  return rewards.map((reward) => reward - center);
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

/** Of too few values to have one: 0. */
function deviation(values: readonly number[], ddof: 0 | 1): number {
  return values.length <= ddof ? 0 : standardDeviation(values, ddof);
}
