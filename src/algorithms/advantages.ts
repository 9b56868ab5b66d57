/** From groups of rewards to advantages, by estimator. */
import type { TrajectoryGroup } from "../trajectories/types.ts";
import type { Estimator, EstimatorOptions } from "./estimators/estimator.ts";
import { grpo } from "./estimators/grpo.ts";

export const estimators = { grpo } as const satisfies Record<string, Estimator>;

export type EstimatorName = keyof typeof estimators;

/**
 * One advantage per trajectory. Each role is estimated by itself.
 *
 * @returns `[groups][members]`, in the order of `groups`
 * @example
 * const advantages = estimateAdvantages(groups, { ...estimatorPresets.rllm, estimator: "grpo", std: true });
 */
export function estimateAdvantages(
  groups: readonly TrajectoryGroup[],
  options: EstimatorOptions & { estimator: EstimatorName },
): number[][] {
  const advantages: number[][] = groups.map(() => []);
  for (const role of new Set(groups.map((group) => group.role))) {
    const indices = [...groups.keys()].filter((index) => groups[index]!.role === role);
    const rewards = indices.map((index) => groups[index]!.members.map(({ reward }) => reward));
    const estimated = estimators[options.estimator](rewards, options);
    indices.forEach((index, position) => {
      advantages[index] = estimated[position]!;
    });
  }
  return advantages;
}
