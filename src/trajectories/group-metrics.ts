/** Metrics of the rewards and advantages of a batch, by role. */
import { mean, percentile, spread, standardDeviation } from "../statistics.ts";
import type { TrajectoryGroup } from "./types.ts";

/** Smaller advantages and deviations count as zero. */
const negligible = 1e-8;

/** `reward/{role}/*` over trajectories; `batch/{role}/*` over the groups of two or more. */
export function rewardMetrics(groups: readonly TrajectoryGroup[]): Record<string, number> {
  const rewards = groups.map(({ members }) => members.map(({ reward }) => reward));
  return byRole(groups, rewards, (role, own) => ({
    ...describe(`reward/${role}`, own.flat()),
    ...signalMetrics(
      `batch/${role}`,
      own.filter(({ length }) => length >= 2),
    ),
  }));
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
  return byRole(groups, advantages, (role, own) => {
    const flat = own.flat().filter(Number.isFinite);
    if (flat.length === 0) return {};
    const zero = flat.filter((value) => Math.abs(value) < negligible).length;
    return { ...describe(`advantage/${role}`, flat), [`advantage/${role}/fraction_zero`]: zero / flat.length };
  });
}

function byRole(
  groups: readonly TrajectoryGroup[],
  values: readonly (readonly number[])[],
  metrics: (role: string, own: readonly (readonly number[])[]) => Record<string, number>,
): Record<string, number> {
  const roles = [...new Set(groups.map(({ role }) => role))];
  const valuesOf = (role: string) => values.filter((_, index) => groups[index]?.role === role);
  return Object.assign({}, ...roles.map((role) => metrics(role, valuesOf(role))));
}

function describe(name: string, values: readonly number[]): Record<string, number> {
  return { ...spread(name, values), [`${name}/std`]: standardDeviation(values) };
}

/** The shares of groups with a signal, and of those without: all rollouts solved the task, or none did. */
function signalMetrics(name: string, groups: readonly (readonly number[])[]): Record<string, number> {
  if (groups.length === 0) return {};
  const means = groups.map(mean);
  const deviations = groups.map((rewards) => standardDeviation(rewards));
  const uniform = means.filter((_, index) => Number(deviations[index]) < negligible);
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
