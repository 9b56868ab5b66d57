/** What the rewards and advantages of a batch look like, by role. */
import { mean, percentile, spread, standardDeviation } from "../statistics.ts";
import type { TrajectoryGroup } from "./types.ts";

/** Below this an advantage counts as zero, and a group's deviation as none. */
const negligible = 1e-8;

/** `reward/{role}/*` over trajectories; `batch/{role}/*` over the groups of two or more. */
export function rewardMetrics(groups: readonly TrajectoryGroup[]): Record<string, number> {
  return byRole(groups, (role, own) => {
    const rewards = own.map((index) => groups[index]!.members.map(({ reward }) => reward));
    return {
      ...describe(`reward/${role}`, rewards.flat()),
      ...signalMetrics(
        `batch/${role}`,
        rewards.filter(({ length }) => length >= 2),
      ),
    };
  });
}

/**
 * `advantage/{role}/*` over trajectories.
 *
 * @param advantages `[groups][members]`
 */
export function advantageMetrics(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly number[])[],
): Record<string, number> {
  return byRole(groups, (role, own) => {
    const flat = own.flatMap((index) => advantages[index]!).filter(Number.isFinite);
    if (flat.length === 0) return {};
    return {
      ...describe(`advantage/${role}`, flat),
      [`advantage/${role}/fraction_zero`]: mean(flat.map((value) => Number(Math.abs(value) < negligible))),
    };
  });
}

function byRole(
  groups: readonly TrajectoryGroup[],
  figures: (role: string, indices: number[]) => Record<string, number>,
): Record<string, number> {
  const roles = [...new Set(groups.map(({ role }) => role))];
  const indices = (role: string) => [...groups.keys()].filter((index) => groups[index]!.role === role);
  return Object.assign({}, ...roles.map((role) => figures(role, indices(role))));
}

function describe(name: string, values: readonly number[]): Record<string, number> {
  return { ...spread(name, values), [`${name}/std`]: standardDeviation(values) };
}

/** How many groups carry a signal, and how the others miss it: solved by all, or by none. */
function signalMetrics(name: string, groups: readonly (readonly number[])[]): Record<string, number> {
  if (groups.length === 0) return {};
  const means = groups.map(mean);
  const deviations = groups.map((rewards) => standardDeviation(rewards));
  const uniform = means.filter((_, index) => deviations[index]! < negligible);
  const percentiles = [10, 50, 90].flatMap((rank) => [
    [`${name}/group_reward_mean/p${rank}`, percentile(means, rank)],
    [`${name}/group_reward_std/p${rank}`, percentile(deviations, rank)],
  ]);
  return {
    [`${name}/total`]: groups.length,
    [`${name}/informative`]: groups.length - uniform.length,
    [`${name}/fractions/effective`]: 1 - uniform.length / groups.length,
    [`${name}/fractions/too_easy`]: uniform.filter((reward) => reward >= 1).length / groups.length,
    [`${name}/fractions/too_hard`]: uniform.filter((reward) => reward <= 0).length / groups.length,
    ...Object.fromEntries(percentiles),
  };
}
